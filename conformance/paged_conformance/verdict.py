"""Verdict: what the outcomes of one candidate's tests add up to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

CONFORMANT = "conformant"
NOT_CONFORMANT = "not conformant"
NOT_RUN = "not run"
_WORST_FIRST = (NOT_CONFORMANT, NOT_RUN, CONFORMANT)


@dataclass(slots=True)
class Outcome:
    """One test's result: passed, failed, skipped or known gap. `refusal`: the undeclared capabilities whose refusal was
    tested instead. `message`: why it failed or was skipped, or the known gap's reason. `measured`: recorded numbers."""

    layer: str
    outcome: str
    refusal: list[str] = field(default_factory=list)
    message: str = ""
    measured: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Layer and outcome, and whatever else there is to say."""
        extras = {"refusal": self.refusal, "message": self.message, "measured": self.measured}
        return {"layer": self.layer, "outcome": self.outcome} | {name: value for name, value in extras.items() if value}


@dataclass(slots=True)
class Judgement:
    """One candidate with its outcomes by test id, and reasons why it could not be run here.

    `partial`: only part of the suite ran, so that nothing is green. `expected`: false when nobody asked for it and it
    is made for another device: that it was not run is then no failing of the run.
    """

    candidate: Candidate
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    partial: bool = False
    expected: bool = True

    @property
    def counts(self) -> Counter[str]:
        """Number of tests by outcome."""
        return Counter(outcome.outcome for outcome in self.outcomes.values())

    @property
    def verdict(self) -> str:
        """conformant | not conformant | not run. Green only when everything ran."""
        if self.counts["failed"]:
            return NOT_CONFORMANT
        if self.partial or self.reasons or self.counts["skipped"] or not self.outcomes:
            return NOT_RUN
        return CONFORMANT

    @property
    def wording(self) -> str:
        """The verdict as published: with the number of known gaps."""
        num_gaps = self.counts["known gap"]
        if self.verdict != CONFORMANT or not num_gaps:
            return self.verdict
        return f"{CONFORMANT} with {num_gaps} known gap{'s' if num_gaps > 1 else ''}"

    def as_json(self) -> dict[str, Any]:
        """Everything a reader needs to check the verdict."""
        record = self.candidate.record
        gaps = {name: each.message for name, each in self.outcomes.items() if each.outcome == "known gap"}
        return {
            "name": record.name,
            "kind": record.kind,
            "plugin": record.plugin,
            "dist": record.dist,
            "version": record.version,
            "api": record.provider.api,
            "capabilities": sorted(record.provider.capabilities),
            "verdict": self.wording,
            "reasons": self.reasons,
            "counts": dict(sorted(self.counts.items())),
            "known_gaps": dict(sorted(gaps.items())),
            "tests": {name: outcome.as_json() for name, outcome in sorted(self.outcomes.items())},
        }


def worst(judgements: list[Judgement]) -> str:
    """The verdict over all: not conformant before not run before conformant (known gaps included)."""
    verdicts = {judgement.verdict for judgement in judgements}
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), NOT_RUN)
