"""Traces: arrival times and lengths that real services saw, read from their published files, and pure changes of them.

format     file    columns or keys
azure      CSV     TIMESTAMP (date and time), ContextTokens, GeneratedTokens
burstgpt   CSV     Timestamp (seconds), Request tokens, Response tokens; failed requests (no response) are left out
plain      CSV     arrival_s, prompt_tokens, output_tokens, perhaps client
mooncake   JSONL   timestamp (ms), input_length, output_length, hash_ids (one a block of 512 prompt tokens)

The format is told by the first line. Other columns do not matter.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

MOONCAKE_BLOCK = 512
"""Prompt tokens that one of Mooncake's `hash_ids` stands for; the last one of a prompt may stand for fewer."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    at_s           seconds after the trace's first request
    prompt_tokens  at least 1
    output_tokens  at least 1
    client         who sent it; empty where the trace does not say
    blocks         names of the prompt's blocks in order: prompts with equal first names begin with equal tokens
    block_tokens   tokens of a block (0 without blocks)
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    client: str = ""
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0


def read_trace(path: Path) -> list[Arrival]:
    """All requests of a file in one of the formats above, by time, the first one at 0.

    Rows without a prompt token or without an output token are left out: they say nothing that could be asked for.
    ConfigError when the file cannot be read or is in no such format, or names the line that is bad.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(_json_rows(lines) if path.suffix == ".jsonl" else _csv_rows(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from error
    kept = sorted((row for row in rows if min(row.prompt_tokens, row.output_tokens) > 0), key=lambda row: row.at_s)
    if not kept:
        raise ConfigError(f"{path} holds no request")
    return shifted(kept)


def shifted(rows: Sequence[Arrival]) -> list[Arrival]:
    """The same rows, the first one at 0."""
    return [replace(row, at_s=row.at_s - rows[0].at_s) for row in rows]


def window(rows: Sequence[Arrival], begin_s: float, end_s: float = inf) -> list[Arrival]:
    """Those of `rows` that arrive in [begin_s, end_s), the first one at 0.

    Names of blocks stay, though who named them first may be outside. ConfigError when none arrives.
    """
    kept = [row for row in rows if begin_s <= row.at_s < end_s]
    if not kept:
        last_s = rows[-1].at_s if rows else 0.0
        raise ConfigError(f"no request arrives between {begin_s:g} and {end_s:g} s: the last one does at {last_s:g} s")
    return shifted(kept)


def mean_rate(rows: Sequence[Arrival]) -> float:
    """Requests a second: gaps over the time they fill. Infinite when all arrive at once."""
    span = rows[-1].at_s - rows[0].at_s if rows else 0.0
    return (len(rows) - 1) / span if span else float("inf")


def at_rate(rows: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The time axis stretched so that the mean rate is `rate`; bursts and lulls keep their shape."""
    before = mean_rate(rows)
    factor = 0.0 if before == float("inf") else before / rate
    return [replace(row, at_s=row.at_s * factor) for row in rows]


def scaled_lengths(rows: Sequence[Arrival], factor: float) -> list[Arrival]:
    """All lengths, those of blocks too, times `factor`, rounded, at least 1: to fit a model with a shorter context."""

    def scaled(tokens: int) -> int:
        return max(1, round(tokens * factor))

    return [
        replace(
            row,
            prompt_tokens=scaled(row.prompt_tokens),
            output_tokens=scaled(row.output_tokens),
            block_tokens=scaled(row.block_tokens) if row.block_tokens else 0,
        )
        for row in rows
    ]


def _csv_rows(lines: Iterator[str]) -> Iterator[Arrival]:
    table = csv.DictReader(lines)
    columns = set(table.fieldnames or ())
    for needed, row_of in _CSV_FORMATS.items():
        if set(needed) <= columns:
            yield from _parsed(table, row_of)
            return
    known = "; ".join(", ".join(needed) for needed in _CSV_FORMATS)
    raise ConfigError(f"line 1: no trace with columns {', '.join(sorted(columns)) or 'at all'}; known are: {known}")


def _json_rows(lines: Iterator[str]) -> Iterator[Arrival]:
    yield from _parsed((json.loads(line) for line in lines if line.strip()), _mooncake, first=1)


def _parsed(
    table: Iterator[Mapping[str, Any]], row_of: Callable[[Mapping[str, Any]], Arrival], first: int = 2
) -> Iterator[Arrival]:
    number = first
    try:
        for row in table:
            arrival = row_of(row)
            if not isfinite(arrival.at_s):
                raise ValueError(f"{arrival.at_s} is no time")
            yield arrival
            number += 1
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"line {number}: {error!r} in what should be a request") from error


def _azure(row: Mapping[str, Any]) -> Arrival:
    text = row["TIMESTAMP"].strip()
    head, dot, digits = text.partition(".")  # seven digits of a second; datetime takes six
    when = datetime.fromisoformat(head)
    at_s = (when - datetime(2000, 1, 1, tzinfo=when.tzinfo)).total_seconds() + (float(f"0.{digits[:9]}") if dot else 0)
    return Arrival(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _burstgpt(row: Mapping[str, Any]) -> Arrival:
    return Arrival(float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"]))


def _plain(row: Mapping[str, Any]) -> Arrival:
    client = str(row.get("client") or "")
    return Arrival(float(row["arrival_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]), client)


def _mooncake(row: Mapping[str, Any]) -> Arrival:
    blocks = tuple(int(one) for one in row["hash_ids"])
    at_s = float(row["timestamp"]) / 1000
    return Arrival(at_s, int(row["input_length"]), int(row["output_length"]), "", blocks, MOONCAKE_BLOCK)


_CSV_FORMATS: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Arrival]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("Timestamp", "Request tokens", "Response tokens"): _burstgpt,
    ("arrival_s", "prompt_tokens", "output_tokens"): _plain,
}
