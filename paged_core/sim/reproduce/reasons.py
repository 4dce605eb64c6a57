"""Reasons: why a figure misses, found by experiment. Printed of rows that are missed, no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.sim.reproduce.verdict import Row

UNKNOWN = "no reason is known."
_REASONS: Mapping[tuple[str, str], str] = {}


def reason(row: Row) -> str:
    """The reason whose claim is the row's and whose words begin or end what the row says; `UNKNOWN` without one."""
    for (claim, words), text in _REASONS.items():
        if claim == row.claim and words in row.what:
            return text
    return UNKNOWN
