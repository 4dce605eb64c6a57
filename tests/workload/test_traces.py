"""Traces: the published formats, and what is done to their rows."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import pytest

from paged_core.errors import ConfigError
from paged_core.workload.traces import Arrival, at_rate, mean_rate, read_trace, scaled_lengths, window

if TYPE_CHECKING:
    from pathlib import Path

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9799600,4808,10
2023-11-17 00:00:00.0319600,3180,8
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
PLAIN = """req_id,client,arrival_s,prompt_tokens,output_tokens
0,13,0.5,13,199
1,2,0.25,36,137
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 700, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 3500, "input_length": 1030, "output_length": 2, "hash_ids": [0, 14, 15]}

"""


def read(folder: Path, text: str, name: str = "trace.csv") -> list[Arrival]:
    path = folder / name
    path.write_text(text, newline="")
    return read_trace(path)


def test_azure_counts_from_its_first_request_over_midnight(tmp_path: Path) -> None:
    first, second = read(tmp_path, AZURE)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0, 4808, 10)
    assert second.at_s == pytest.approx(0.052, abs=1e-6)
    assert (second.prompt_tokens, second.output_tokens) == (3180, 8)


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    assert read(tmp_path, AZURE.replace("\n", "\r\n")) == read(tmp_path, AZURE)


def test_burstgpt_leaves_out_requests_that_failed(tmp_path: Path) -> None:
    assert read(tmp_path, BURSTGPT) == [Arrival(0, 472, 18), Arrival(113, 417, 276)]


def test_burstgpt_with_sessions_and_elapsed_times_reads_alike(tmp_path: Path) -> None:
    newer = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.5,17,2.25,ChatGPT,472,18,490,Conversation log
45,17,,ChatGPT,1087,0,1087,Conversation log
118.5,,,GPT-4,417,276,693,API log
"""
    assert read(tmp_path, newer.replace("\n", "\r\n")) == [Arrival(0, 472, 18), Arrival(113, 417, 276)]


def test_plain_rows_come_by_time_and_name_their_client(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN) == [Arrival(0, 36, 137, "2"), Arrival(0.25, 13, 199, "13")]


def test_mooncake_keeps_the_blocks_that_prompts_share(tmp_path: Path) -> None:
    assert read(tmp_path, MOONCAKE, "trace.jsonl") == [
        Arrival(0, 700, 500, "", (0, 1), 512),
        Arrival(2.5, 1030, 2, "", (0, 14, 15), 512),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "line 1: no trace with columns at all"),
        ("a.csv", "when,what\n1,2\n", "line 1: no trace with columns what, when"),
        ("a.csv", AZURE + "2023-11-17 00:00:01,many,8\n", "line 4: "),
        ("a.csv", PLAIN + "2,3,nan,4,5\n", "line 4: "),
        ("a.csv", PLAIN + "2,3\n", "line 4: "),
        ("a.csv", "arrival_s,prompt_tokens,output_tokens\n0,0,5\n", "holds no request"),
        ("a.jsonl", MOONCAKE.strip() + "\n{nonsense\n", "line 3: "),
        ("a.jsonl", '{"timestamp": 0}\n', "line 1: "),
        ("a.jsonl", "[1]\n", "line 1: "),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.csv cannot be read"):
        read_trace(tmp_path / "absent.csv")


def test_a_window_holds_its_begin_but_not_its_end_and_starts_at_zero() -> None:
    rows = [Arrival(at, 1, 1, "", (int(at),), 512) for at in (0.0, 1.0, 4.0, 5.0)]
    assert window(rows, 1.0, 5.0) == [Arrival(0.0, 1, 1, "", (1,), 512), Arrival(3.0, 1, 1, "", (4,), 512)]
    assert [row.at_s for row in window(rows, 1.5)] == [0.0, 1.0]
    with pytest.raises(ConfigError, match="no request arrives between 2 and 4 s: the last one does at 5 s"):
        window(rows, 2.0, 4.0)


def test_a_rate_stretches_time_and_keeps_its_shape() -> None:
    rows = [Arrival(at, 1, 1) for at in (0.0, 1.0, 4.0)]
    assert mean_rate(rows) == 0.5
    assert [row.at_s for row in at_rate(rows, 5.0)] == pytest.approx([0, 0.1, 0.4])
    assert [row.at_s for row in at_rate(rows, float("inf"))] == [0, 0, 0]
    assert mean_rate(rows[:1]) == float("inf")
    assert at_rate(rows[:1], 3.0) == rows[:1]


def test_lengths_and_blocks_shrink_together_and_never_vanish() -> None:
    (found,) = scaled_lengths([Arrival(1.0, 1030, 2, "c", (0, 14, 15), 512)], 0.1)
    assert found == Arrival(1.0, 103, 1, "c", (0, 14, 15), 51)


@pytest.mark.parametrize(
    ("name", "count", "rate", "variation", "prompt", "output"),
    [
        ("azure2023_code.csv", 8_819, 2.57, 13.2, 2_048, 27.9),
        ("azure2023_conv.csv", 19_366, 5.53, 1.09, 1_155, 211),
        ("mooncake_synthetic.jsonl", 3_993, 3.91, 1.01, 15_325, 149),
    ],
)
def test_published_traces_are_read_whole(
    shared: Path, name: str, count: int, rate: float, variation: float, prompt: float, output: float
) -> None:
    rows = read_trace(shared / "data" / "traces" / name)
    gaps = [after.at_s - before.at_s for before, after in pairwise(rows)]
    assert len(rows) == count
    assert mean_rate(rows) == pytest.approx(rate, rel=0.005)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.01)
    assert fmean(row.prompt_tokens for row in rows) == pytest.approx(prompt, rel=0.001)
    assert fmean(row.output_tokens for row in rows) == pytest.approx(output, rel=0.002)


def test_mooncakes_blocks_cover_the_prompts_and_repeat_as_published(shared: Path) -> None:
    rows = read_trace(shared / "data" / "traces" / "mooncake_synthetic.jsonl")
    names = [name for row in rows for name in row.blocks]
    assert all(len(row.blocks) == -(-row.prompt_tokens // row.block_tokens) for row in rows)
    assert 1 - len(set(names)) / len(names) == pytest.approx(0.640, abs=0.001)
