"""Calls: what a ledger may ask of an allocator, in any order; a call that makes no sense just now does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_shape import PLAIN, Origin

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_conformance.oracles.allocator_world import World
    from paged_core.api.request import Group, Sequence

ORIGINS = (PLAIN, PLAIN, PLAIN, Origin(salt="s"), Origin(adapter="s"), Origin(cold=True))
BEGINNINGS = (10, 8, 12, 4, 0)  # tokens that many prompts have in common, so that there is something to hit

# Weighted: most traces are to be full of living sequences.
CALLS = (
    *("admit",) * 4,
    *("decode",) * 4,
    *("free",) * 2,
    *("diverge",) * 2,
    *("swap_out",) * 2,
    *("swap_in",) * 2,
    *("open", "compute", "decode_all", "fork", "abort", "shrink"),
)


class Call(NamedTuple):
    """One of CALLS; `number` picks whom it concerns and how much, `tokens` (0 or 1, not empty) are what it adds."""

    name: str
    number: int
    tokens: list[int]


class Trace:
    """A world and its groups. `World` checks every call against the model."""

    def __init__(self, candidate: Candidate, world: World) -> None:
        self.world = world
        self.groups: list[Group] = []  # on the device
        self.away: list[Group] = []  # on the host
        self._has = candidate.has

    def run(self, calls: list[Call]) -> None:
        """Make the calls, then let everything leave."""
        for name, number, tokens in calls:
            getattr(self, f"_{name}")(number, tokens)
        self.world.drain()

    # -- coming ---------------------------------------------------------------------------------------------------

    def _newcomer(self, number: int, tokens: list[int]) -> Sequence | None:
        if not self.world.free_rows:
            return None
        prompt = [0] * BEGINNINGS[number % len(BEGINNINGS)] + tokens
        seq = self.world.seq(prompt, ORIGINS[number // len(BEGINNINGS) % len(ORIGINS)])
        self.world.open(seq)
        return seq

    def _open(self, number: int, tokens: list[int]) -> None:
        """A newcomer that computes nothing yet."""
        if seq := self._newcomer(number, tokens):
            self.groups.append(self.world.group(seq))

    def _admit(self, number: int, tokens: list[int]) -> None:
        """A newcomer that computes its whole prompt if there is room."""
        self._open(number, tokens)
        if self.groups and (seq := self.groups[-1].live[0]).gap:
            self.world.compute(seq)

    def _abort(self, number: int, tokens: list[int]) -> None:
        """A newcomer that leaves between allocation and forward pass."""
        if seq := self._newcomer(number, tokens):
            self.world.grow(seq, seq.gap)
            self.world.free_seq(seq)

    # -- growing --------------------------------------------------------------------------------------------------

    def _compute(self, number: int, tokens: list[int]) -> None:
        """A chunk of somebody's prompt."""
        seq = self._pick(number)
        if seq is not None and seq.gap:
            self.world.compute(seq, min(len(tokens), seq.gap))

    def _decode(self, number: int, tokens: list[int]) -> None:
        """Several steps of one group: its branches take turns and differ by their tokens."""
        if not self.groups:
            return
        group = self.groups[number % len(self.groups)]
        for token in tokens:
            if not self._sampled(group, token):
                return
            for seq in group.live:
                self.world.compute(seq)

    def _decode_all(self, number: int, tokens: list[int]) -> None:
        """One step of several groups at once, planned and carried out."""
        chosen = [group for group in self.groups if group.decoding or self._sampled(group, tokens[0])]
        plan = Plan(self.world, [group for group in chosen if group.decoding][: number % 4 + 1])
        if plan.take_decodes():
            plan.apply()

    def _sampled(self, group: Group, token: int) -> bool:
        if any(seq.gap or seq.num_tokens >= self.world.rows.max_len for seq in group.live):
            return False
        for position, seq in enumerate(group.live):
            self.world.append(seq, (token + position) % 2)
        return True

    # -- branching ------------------------------------------------------------------------------------------------

    def _fork(self, number: int, tokens: list[int]) -> None:
        """A branch from somebody's past."""
        parent, back = self._pick(number), len(tokens)
        if parent is None or not self._has("fork") or not self.world.free_rows or parent.num_computed <= back:
            return
        child = self.world.fork(parent, parent.num_computed - back)
        next(group for group in self.groups if parent in group.live).sequences.append(child)

    def _diverge(self, number: int, tokens: list[int]) -> None:
        """What parallel sampling does: branches of one prompt, each with tokens of its own."""
        if not self.groups or not self._has("fork"):
            return
        index = number % len(self.groups)
        seq = self.groups[index].live[0]
        if seq.num_computed and seq.gap == 0:
            width = min(len(tokens), len(self.world.free_rows))
            self.groups[index].sequences += [self.world.fork(seq) for _ in range(width)]
            self._decode(index, tokens[:1])

    # -- leaving --------------------------------------------------------------------------------------------------

    def _free(self, number: int, tokens: list[int]) -> None:
        """A branch ends, on whichever tier it is."""
        seqs = [seq for group in (*self.groups, *self.away) for seq in group.live]
        if seqs:
            self.world.free_seq(seqs[number % len(seqs)])
            self.groups = [group for group in self.groups if group.live]
            self.away = [group for group in self.away if group.live]

    def _shrink(self, number: int, tokens: list[int]) -> None:
        """The last tokens are taken back, hit ones too, but never all of them."""
        seq = self._pick(number)
        if seq is None or not self._has("shrink"):
            return
        keep = max(seq.num_computed - len(tokens), 1)
        if seq.num_computed > keep:
            self.world.shrink(seq, keep)

    def _swap_out(self, number: int, tokens: list[int]) -> None:
        """Somebody with branches, if there is one: only they share blocks that must come back shared."""
        if not self.groups or not self._has("swap"):
            return
        wide = [group for group in self.groups if len(group.live) > 1] or self.groups
        group = wide[number % len(wide)]
        if self.world.swap_out(group) is not None:
            self.groups.remove(group)
            self.away.append(group)

    def _swap_in(self, number: int, tokens: list[int]) -> None:
        if not self.away:
            return
        group = self.away[number % len(self.away)]
        if self.world.swap_in(group) is not None:
            self.away.remove(group)
            self.groups.append(group)
            self._decode(len(self.groups) - 1, tokens[:1])

    def _pick(self, number: int) -> Sequence | None:
        seqs = [seq for group in self.groups for seq in group.live]
        return seqs[number % len(seqs)] if seqs else None
