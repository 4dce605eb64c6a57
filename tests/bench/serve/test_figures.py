"""The formulas, on timelines made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.bench.serve.figures import Quantiles, Slo, summarize
from paged_core.bench.serve.record import Record
from paged_core.errors import ConfigError
from paged_core.workload.traces import Arrival


def record(due: float = 0.0, text: tuple[float, ...] = (1.5, 2.0, 4.0), **more: Any) -> Record:
    fields = {
        "asked": Arrival(due, 10, 3),
        "woke_s": due,
        "sent_s": due,
        "ended_s": text[-1] if text else due,
        "text_s": text,
        "num_prompt": None,
        "usage_output": None,
        "error": "",
        "detail": "",
    }
    return Record(**(fields | more))


def means(*records: Record) -> dict[str, float | None]:
    return {name: q and q.mean for name, q in summarize(records, 1.0).times.items()}


def test_times_of_one_answer() -> None:
    # sent at 1; text at 1.5, 2 and 4; five tokens by usage
    found = means(record(due=0.5, sent_s=1.0, usage_output=5, ended_s=4.25))
    assert found == {"TTFT": 0.5, "TPOT": (4 - 1.5) / 4, "ITL": (0.5 + 2.0) / 2, "E2E": 3.0, "normalized": 3.0 / 5}


def test_pieces_are_counted_where_there_is_no_usage() -> None:
    assert means(record())["TPOT"] == (4 - 1.5) / 2
    found = summarize([record(), record(usage_output=7)], 1.0)
    assert (found.num_output, found.num_by_pieces) == (3 + 7, 1)


def test_one_token_has_no_time_per_output_token() -> None:
    assert means(record(text=(2.0,))) == {"TTFT": 2.0, "TPOT": None, "ITL": None, "E2E": 2.0, "normalized": 2.0}


def test_gaps_of_all_answers_weigh_alike_and_answers_in_tpot() -> None:
    found = means(record(text=(1.0, 2.0)), record(text=(1.0, 4.0, 7.0, 10.0)))
    assert found["ITL"] == (1 + 3 + 3 + 3) / 4
    assert found["TPOT"] == (1 + 3) / 2


def test_percentiles_are_linear_between_neighbours() -> None:
    assert Quantiles.of(float(x) for x in range(11)) == Quantiles(5.0, 5.0, 9.0, 9.5, pytest.approx(9.9), 10.0)
    assert Quantiles.of([None, 3.0]) == Quantiles(3, 3, 3, 3, 3, 3)
    assert Quantiles.of([None]) is None


def test_throughput_counts_what_was_answered_to_the_end_over_the_whole_run() -> None:
    good = record(num_prompt=12, usage_output=6)
    failed = record(due=1.0, text=(1.5,), ended_s=8.0, error="HTTP 429", detail="full")
    found = summarize([good, failed, failed], 2.0)
    assert (found.num_ok, found.duration_s, found.errors, found.details) == (
        1,
        8.0,
        {"HTTP 429": 2},
        {"HTTP 429": "full"},
    )
    assert (found.per_second(found.num_output), found.per_second(found.num_prompt)) == (6 / 8, 12 / 8)
    assert found.prompt_counts == (10, 12)


def test_nothing_answered_has_no_times() -> None:
    found = summarize([record(text=(), error="timeout", detail="")], 1.0)
    assert set(found.times.values()) == {None}
    assert (found.num_ok, found.per_second(1)) == (0, 0.0)


def test_goodput_wants_every_limit_kept() -> None:
    slo = Slo.parse("ttft:1500,tpot:1000")
    slow_start, slow_tokens = record(text=(1.6, 1.7)), record(text=(1.0, 2.5))
    failed = record(text=(0.1,), error="cut stream")
    on_the_limit = record(text=(1.5, 2.5))
    assert [slo.kept(one) for one in (slow_start, slow_tokens, failed, on_the_limit)] == [False, False, False, True]
    assert summarize([slow_start, on_the_limit, failed], 1.0, slo).num_good == 1
    assert summarize([on_the_limit], 1.0).num_good is None


def test_limits_count_from_sending() -> None:
    assert Slo.parse("e2e:1000").kept(record(due=5.0, sent_s=6.0, text=(6.5, 7.0)))
    assert not Slo.parse("e2el:999").kept(record(due=5.0, sent_s=6.0, text=(6.5, 7.0)))


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:nan", "ttft:inf", "itl:5", "ttft:1,ttft:2"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME:MILLISECONDS"):
        Slo.parse(text)


def test_requests_in_flight_at_once() -> None:
    spans = [(0.0, 4.0), (1.0, 2.0), (2.0, 3.0), (2.5, 6.0)]
    found = summarize([record(due=begin, text=(end,)) for begin, end in spans], 1.0)
    assert found.peak_in_flight == 3


def test_late_arrivals_and_a_busy_client_are_warned_of() -> None:
    assert summarize([record(woke_s=0.009)], 1.0, client_cpu_s=2.0).warnings == []
    late, busy = summarize([record(woke_s=0.5, sent_s=0.5)], 1.0, client_cpu_s=3.9).warnings
    assert "arrivals slipped (p99 500.0 ms" in late
    assert "98% of a core" in busy


def test_being_held_by_the_limit_on_concurrency_is_not_being_late() -> None:
    assert summarize([record(woke_s=0.0, sent_s=3.0)], 1.0).warnings == []
