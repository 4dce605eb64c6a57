"""Data: real prompts and sentence pairs, from a folder the user names, or a small sample that comes along.

DIR/prompts/alpaca_libre.jsonl   instruction, input, output: short tasks with their answers
DIR/prompts/mt_bench.jsonl       turns[0]: opening questions of a chat
DIR/prompts/wmt_ende_pairs.tsv   English<TAB>German, one pair a line
DIR/traces/arena_multiclient.csv prompt_tokens, output_tokens of a chat service
DIR/lengths/sharegpt_llama2.csv  prompt_tokens, output_tokens of ShareGPT turns, history included
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.bench.lengths import Lengths, read_lengths
from paged_core.bench.sample import PAIRS, QUESTIONS, TASKS
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALPACA = "prompts/alpaca_libre.jsonl"
MT_BENCH = "prompts/mt_bench.jsonl"
WMT = "prompts/wmt_ende_pairs.tsv"
ARENA = "traces/arena_multiclient.csv"
SHAREGPT = "lengths/sharegpt_llama2.csv"
FILES = (ALPACA, MT_BENCH, WMT, ARENA, SHAREGPT)


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


def read_data(folder: Path) -> Data:
    """Everything of `folder`. ConfigError names every missing file, or the line that is bad."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} lacks {', '.join(missing)}")
    lengths = (read_lengths(folder / ARENA, "Arena trace"), read_lengths(folder / SHAREGPT, "ShareGPT turns"))
    return Data(
        source=folder.name,
        tasks=tuple(_tasks(folder / ALPACA)),
        questions=tuple(str(item["turns"][0]) for item in _json_lines(folder / MT_BENCH, ("turns",))),
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
