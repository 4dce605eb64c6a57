"""Flips: where two runs of the same prompts part, and how sure a rate of such partings is."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TIE_GAP = 1e-3
MOST_TIES = 0.02


@dataclass(frozen=True, slots=True)
class Reference:
    """Greedy tokens of every prompt, and the gap between best and second logit at each of them."""

    tokens: list[list[int]]
    gaps: list[list[float]]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token of sequence `prompt` that differs from the reference, and the reference's gap there."""

    prompt: int
    index: int
    gap: float


@dataclass(slots=True)
class Comparison:
    """Partings from the reference over `num_sequences`: flips, and ties where they were told apart."""

    num_sequences: int
    flips: list[Parting] = field(default_factory=list)
    ties: list[Parting] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Share of sequences that flip."""
        return len(self.flips) / self.num_sequences

    @property
    def first(self) -> int | None:
        """Smallest token index at which a sequence flips."""
        return min((flip.index for flip in self.flips), default=None)

    @property
    def median(self) -> float | None:
        """Median token index of the flips."""
        return statistics.median(flip.index for flip in self.flips) if self.flips else None

    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate."""
        return wilson(len(self.flips), self.num_sequences)

    def failure(self) -> str | None:
        """Why law 15 does not hold, or None: a flip at a real gap, or more than 2 % ties."""
        if self.flips:
            worst = max(self.flips, key=lambda flip: flip.gap)
            where = f"prompt {worst.prompt} flips at token {worst.index}"
            return f"{where}, where the two best logits lie {worst.gap:.4f} apart"
        if len(self.ties) > MOST_TIES * self.num_sequences:
            return f"{len(self.ties)} of {self.num_sequences} sequences end in a tie; {MOST_TIES:.0%} may"
        return None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "sequences": self.num_sequences,
            "rate": self.rate,
            "interval": self.interval(),
            "first": self.first,
            "flips": [[flip.prompt, flip.index, flip.gap] for flip in self.flips],
            "ties": [[tie.prompt, tie.index, tie.gap] for tie in self.ties],
        }


def compare(reference: Reference, tokens: Sequence[Sequence[int]], *, judge_ties: bool) -> Comparison:
    """Where `tokens` part from the reference. `judge_ties`: a parting at a gap below 1e-3 is a tie, not a flip.

    Behind its first difference a sequence is another one and says nothing more. Raises ValueError when the numbers of
    sequences or of their tokens differ: then they did not run the same task.
    """
    result = Comparison(len(reference.tokens))
    for i, (want, got, gaps) in enumerate(zip(reference.tokens, tokens, reference.gaps, strict=True)):
        if len(want) != len(got):
            raise ValueError(f"prompt {i}: {len(got)} tokens, the reference has {len(want)}")
        index = next((j for j, (one, other) in enumerate(zip(want, got, strict=True)) if one != other), None)
        if index is None:
            continue
        parting = Parting(i, index, gaps[index])
        (result.ties if judge_ties and parting.gap < TIE_GAP else result.flips).append(parting)
    return result


def wilson(num_hits: int, num_trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion; `z` 1.96 for 95 %. Wilson (1927), JASA 22(158)."""
    if not 0 <= num_hits <= num_trials or not num_trials:
        raise ValueError(f"{num_hits} of {num_trials} is no proportion")
    share, weight = num_hits / num_trials, z * z / num_trials
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / num_trials + weight / (4 * num_trials))
    return max(0.0, middle - half), min(1.0, middle + half)
