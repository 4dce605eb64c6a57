"""Prompts from a folder: what is there is read, what is missing or bad is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core.bench.data import (
    ALPACA,
    ARENA,
    C4,
    MT_BENCH,
    SHAREGPT,
    SONNET,
    WMT,
    read_data,
    read_texts,
    sample_data,
    sample_texts,
)
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {
    ALPACA: '{"instruction": "Add.", "input": "1 2", "output": "3"}\n\n'
    '{"instruction": "Say.", "input": "", "output": "x"}\n',
    MT_BENCH: '{"turns": ["Why?", "And then?"]}\n',
    WMT: "A dog .\tEin Hund .\n",
    ARENA: "prompt_tokens,output_tokens\n3,4\n",
    SHAREGPT: "prompt_tokens,output_tokens\n5,6\n",
}


def folder(path: Path, **changes: str) -> Path:
    for name, text in (GOOD | changes).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


def test_a_folder_is_read(tmp_path: Path) -> None:
    data = read_data(folder(tmp_path))
    assert data.tasks == (("Add.\n1 2", "3"), ("Say.", "x"))
    assert data.questions == ("Why?",)
    assert data.pairs == (("A dog .", "Ein Hund ."),)
    assert [one.pairs.tolist() for one in data.lengths] == [[[3, 4]], [[5, 6]]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (ALPACA, '{"instruction": "x"\n', "line 1: not JSON"),
        (ALPACA, '\n{"instruction": "x", "input": ""}\n', "line 2: an object with instruction, input, output"),
        (MT_BENCH, '{"turns": []}\n', "line 1: an object with turns"),
        (WMT, "no tab here\n", "line 1: English, a tab, and German"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_data(folder(tmp_path, **{name: text}))


def test_the_sample_has_enough_for_five_examples() -> None:
    data = sample_data()
    assert len(data.pairs) > 5
    assert data.tasks
    assert data.questions


def test_texts_are_read_a_page_a_line_and_a_whole_file(tmp_path: Path) -> None:
    files = {SONNET: "one\ntwo\n", C4: '{"text": "page 1\\n"}\n{"text": "page 2"}\n'}
    texts = read_texts(folder(tmp_path, **files))
    assert texts.pages == {"sonnets": ("one\ntwo\n",), "web pages": ("page 1\n", "page 2")}
    assert texts.questions == ("Why?",)


def test_missing_texts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks text/sonnet\.txt, text/c4_sample\.jsonl"):
        read_texts(folder(tmp_path))


def test_the_sample_has_a_page_and_questions() -> None:
    texts = sample_texts()
    assert len(texts.pages["sample"][0]) > 300
    assert texts.questions
