"""Reasons: why a figure misses, found by experiment. Printed of rows that are missed, no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.sim.reproduce.verdict import Row

UNKNOWN = "no reason is known."
_REASONS: Mapping[tuple[str, str], str] = {
    ("H5", "vLLM"): (
        "30 requests a second are just what this system carries, and there the batch follows from how long a step "
        "takes, not from memory. At 27 requests a second it is 129, and with the published costs of the 80 GB GPU, "
        "whose decodes are not 1.31 times slower, 138 at 30. The costs are a little too high, then."
    ),
    ("H9", "beams"): (
        "there is no model: where beams part is drawn, each for itself. Beams drawn from the measured "
        "log-probabilities of a real model (SmolLM2-135M) save as much as these under the same lengths (41.5 / 61.2 / "
        "66.8 % and 48.5 / 72.5 / 80.4 %), and its real beams on short prompts 38.9 / 59.0 / 65.3 %, by the same "
        "allocator: [performance.md](performance.md). Less saved means beams that part earlier: the model's own."
    ),
    ("H10", "beams"): (
        "not the number of sequences that may run: room for 1,024 instead of 256 lets 74 instead of 41 requests run "
        "and raises the throughput by 1 %. A step of so many beams is bound by what each one costs (0.12 ms by the "
        "published fit), not by memory; so sharing gains less than on the paper's machine."
    ),
    ("H11", "prefix"): (
        "the paper does not state how long sentences and answers are, and everything hangs on it. With both 0.7 times "
        "as long a flood is served 2.6 and 5.8 times as fast as by Orca (prefix of 80 and of 341 tokens), as they "
        "are 2.4 and 4.6 times, with both three times as long 1.9 and 2.8 times; no one factor gives both of the "
        "paper's. Costs matter less (those of the 80 GB GPU: 2.3 and 4.7 times)."
    ),
    ("H15", "recompute over swap"): (
        "a token of OPT-13B takes 0.14 ms to compute by the published fit (59 % of the GPU's peak), and 0.066 ms to "
        "swap out and in over a link of 25 GB/s, however many there are. The paper states neither its link nor the "
        "tokens of its victim; over 13 GB/s and with 2.5 us a chunk all it says of the figure holds (the row below, "
        "and 135 ms in blocks of one)."
    ),
}


def reason(row: Row) -> str:
    """The reason of the row's claim whose words the row's have in them; `UNKNOWN` without one."""
    for (claim, words), text in _REASONS.items():
        if claim == row.claim and words in row.what:
            return text
    return UNKNOWN
