"""What outcomes add up to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from paged_conformance import judging
from paged_conformance.candidate import Candidate
from paged_conformance.judging import Collected
from paged_conformance.known_gaps import stale_gaps
from paged_conformance.marks import layer, requires
from paged_conformance.report import Report
from paged_conformance.verdict import Judgement, Outcome, worst

from paged_core.api import provider
from paged_core.testing.build import default_plugins


def judged(*outcomes: str, **fields) -> Judgement:
    plugins = default_plugins()
    candidate = Candidate(plugins.records["sched_fcfs"], plugins, "cpu", quick=True)
    return Judgement(candidate, {str(i): Outcome("laws", each) for i, each in enumerate(outcomes)}, **fields)


@pytest.mark.parametrize(
    ("judgement", "wording"),
    [
        (judged("passed"), "conformant"),
        (judged("passed", "known gap"), "conformant with 1 known gap"),
        (judged("known gap", "known gap"), "conformant with 2 known gaps"),
        (judged("passed", "failed", "known gap"), "not conformant"),
        (judged("passed", "skipped"), "not run"),
        (judged(), "not run"),
        (judged("passed", reasons=["no GPU"]), "not run"),
        (judged("failed", reasons=["no GPU"]), "not conformant"),
        (judged("passed", partial=True), "not run"),
    ],
)
def test_wording(judgement: Judgement, wording: str) -> None:
    assert judgement.wording == wording


def test_the_worst_verdict_counts() -> None:
    assert worst([judged("passed"), judged("skipped"), judged("failed")]) == "not conformant"
    assert worst([judged("passed"), judged("skipped")]) == "not run"
    assert worst([judged("passed"), judged("known gap")]) == "conformant"
    assert worst([]) == "not run"


def report_of(*judgements: Judgement) -> Report:
    report = Report(SimpleNamespace(all=list), {}, Collected(frozenset(), frozenset(), frozenset(), by_id=False))
    report._judgements = {("attn", str(index)): each for index, each in enumerate(judgements)}
    report.complete = True
    return report


@pytest.mark.parametrize(
    ("judgements", "code"),
    [
        ([judged("passed"), judged("passed", "skipped", reasons=["no GPU"])], 3),
        ([judged("passed"), judged("passed", "skipped", reasons=["no GPU"], expected=False)], 0),
        ([judged("passed"), judged("failed", reasons=["no GPU"], expected=False)], 1),
        ([judged("passed", "skipped", reasons=["no GPU"], expected=False)], 3),
        ([judged("passed", "skipped"), judged(reasons=["no GPU"], expected=False)], 3),
    ],
)
def test_who_is_not_expected_here_counts_by_failures_only(judgements: list[Judgement], code: int) -> None:
    report = report_of(*judgements)
    assert report.exit_code == code
    assert report.verdict != "conformant"


def test_a_gap_in_a_file_that_was_not_collected_is_not_called_stale() -> None:
    gaps = dict.fromkeys(["a.py::x", "a.py::gone", "b.py::x", "nowhere.py::x"], "")
    assert stale_gaps(gaps, {"a.py::x"}, {"a.py"}, {"a.py", "b.py"}) == ["a.py::gone", "nowhere.py::x"]


def test_the_kinds_are_those_of_the_contract() -> None:
    assert tuple(provider.KINDS) == judging.KINDS


def test_marks_refuse_what_means_nothing() -> None:
    with pytest.raises(ValueError, match="at least one capability"):
        requires()
    with pytest.raises(ValueError, match="no layer 'law'"):
        layer("law")
