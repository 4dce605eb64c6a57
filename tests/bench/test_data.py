"""Prompts from a folder: what is there is read, what is missing or bad is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core.bench.data import ALPACA, ARENA, MT_BENCH, SHAREGPT, WMT, read_data, sample_data
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
