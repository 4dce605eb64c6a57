"""bounded: the Hypothesis settings of every law in the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate


def bounded(candidate: Candidate, max_examples: int) -> settings:
    """The same examples in every run; a fifth of them when the user asked for a quick one."""
    return settings(
        max_examples=max(5, max_examples // 5) if candidate.quick else max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
