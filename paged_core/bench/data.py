"""Data: real prompts and sentence pairs, from a folder the user names, or a small sample that comes along.

DIR/prompts/alpaca_libre.jsonl   instruction, input, output: short tasks with their answers
DIR/prompts/mt_bench.jsonl       turns[0]: opening questions of a chat
DIR/prompts/wmt_ende_pairs.tsv   English<TAB>German, one pair a line
DIR/traces/arena_multiclient.csv prompt_tokens, output_tokens of a chat service
DIR/lengths/sharegpt_llama2.csv  prompt_tokens, output_tokens of ShareGPT turns, history included
DIR/text/sonnet.txt              one text
DIR/text/c4_sample.jsonl         text: pages of the web
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.bench.sample import PAIRS, QUESTIONS, TASKS, TEXT
from paged_core.errors import ConfigError
from paged_core.workload.lengths import Lengths, read_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

ALPACA = "prompts/alpaca_libre.jsonl"
MT_BENCH = "prompts/mt_bench.jsonl"
WMT = "prompts/wmt_ende_pairs.tsv"
ARENA = "traces/arena_multiclient.csv"
SHAREGPT = "lengths/sharegpt_llama2.csv"
FILES = (ALPACA, MT_BENCH, WMT, ARENA, SHAREGPT)
SONNET = "text/sonnet.txt"
C4 = "text/c4_sample.jsonl"
TEXT_FILES = (SONNET, C4, MT_BENCH)


@dataclass(frozen=True, slots=True)
class Data:
    """What the benchmarks read. `source` says where it is from.

    tasks      (prompt, reference answer) of short instructions
    questions  opening questions of a chat
    pairs      (English, German)
    lengths    measured length distributions; none in the sample
    """

    source: str
    tasks: tuple[tuple[str, str], ...]
    questions: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    lengths: tuple[Lengths, ...] = ()


def sample_data() -> Data:
    """A handful of prompts written for this purpose: enough to see the command run, not to quote its numbers."""
    return Data("built-in sample", TASKS, QUESTIONS, PAIRS)


@dataclass(frozen=True, slots=True)
class Texts:
    """What a model's quality is measured on: texts by name, each a list of pages, and questions to answer."""

    source: str
    pages: Mapping[str, tuple[str, ...]]
    questions: tuple[str, ...]


def sample_texts() -> Texts:
    """A page and a few questions, to see the command run."""
    return Texts("built-in sample", {"sample": (TEXT,)}, QUESTIONS)


def read_texts(folder: Path) -> Texts:
    """Texts and questions of `folder`. ConfigError names every missing file, or the line that is bad."""
    _demand(folder, TEXT_FILES)
    web = tuple(item["text"] for item in _json_lines(folder / C4, ("text",)))
    pages = {"sonnets": ((folder / SONNET).read_text(encoding="utf-8"),), "web pages": web}
    return Texts(folder.name, pages, tuple(_questions(folder)))


def _demand(folder: Path, names: Sequence[str]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} lacks {', '.join(missing)}")


def _questions(folder: Path) -> Iterator[str]:
    for item in _json_lines(folder / MT_BENCH, ("turns",)):
        yield str(item["turns"][0])


def read_data(folder: Path) -> Data:
    """Everything of `folder`. ConfigError names every missing file, or the line that is bad."""
    _demand(folder, FILES)
    lengths = (read_lengths(folder / ARENA, "Arena trace"), read_lengths(folder / SHAREGPT, "ShareGPT turns"))
    return Data(
        source=folder.name,
        tasks=tuple(_tasks(folder / ALPACA)),
        questions=tuple(_questions(folder)),
        pairs=tuple(_pairs(folder / WMT)),
        lengths=lengths,
    )


def _tasks(path: Path) -> Iterator[tuple[str, str]]:
    for item in _json_lines(path, ("instruction", "input", "output")):
        yield f"{item['instruction']}\n{item['input']}".strip(), item["output"]


def _json_lines(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(item, dict) or any(not item.get(name) and name != "input" for name in needed):
            raise ConfigError(f"{path}, line {number}: an object with {', '.join(needed)} is needed")
        yield item


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        english, tab, german = line.partition("\t")
        if not tab:
            raise ConfigError(f"{path}, line {number}: English, a tab, and German are needed")
        yield english.strip(), german.strip()
