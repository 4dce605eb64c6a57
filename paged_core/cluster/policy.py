"""LMetric: which replica gets a call. Pure: no clock, no Ray; the router of `ray_router` obeys it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_core.cluster.hotspot import Group, HotspotGuard
from paged_core.cluster.prefixes import KnownPrefixes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.cluster.order import Order

MOST_BLOCKS = 1 << 16
"""Blocks remembered of a replica that has not told how many it has, and at most: 10 MB of keys."""


SHUNNED_FOR = 64
"""Calls for which a replica that lost one comes last: Ray takes its time to notice that a machine is gone."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica has to do: prompt tokens still to prefill, and sequences that wait or run."""

    num_tokens: int = 0
    num_seqs: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.num_tokens + other.num_tokens, self.num_seqs + other.num_seqs)


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica last told of itself: its load by source, the blocks of its pool (0: not known yet) and their
    size in tokens."""

    loads: Mapping[str, Load] = field(default_factory=dict)
    num_blocks: int = 0
    block_size: int = 16


class Replica:
    """A replica as its router knows it."""

    def __init__(self) -> None:
        self.report = Report()
        self.known = KnownPrefixes(MOST_BLOCKS)
        self.last_placed = 0

    def tell(self, report: Report) -> None:
        """News from the replica."""
        self.report = report
        if report.num_blocks:
            self.known.resize(min(MOST_BLOCKS, report.num_blocks))

    def hits(self, order: Order) -> int:
        """Tokens of `order` that are probably cached there; the last token of a prompt is always computed."""
        blocks = sum(self.known.match(keys) for keys in order.keys)
        return min(blocks * self.report.block_size, max(0, order.num_tokens - 1))


class LMetric:
    """Sends a call to the replica with the least  (tokens to prefill, waiting ones and its own, after cache hits there)
    x (sequences there + 1).  The + 1 tells idle replicas apart: by what they would have to compute.

    Equal ones take turns. A replica's load is the sum of this router's own open orders, which are known exactly, and of
    what the replica last told of other routers. The hotspot guard moves a call away from the holders of its prefix only
    while these have something to do: on an idle replica there is no crowd.
    """

    def __init__(self, guard: HotspotGuard | None = None) -> None:
        self._replicas: dict[str, Replica] = {}
        self._open: set[Order] = set()
        self._guard = guard or HotspotGuard()
        self._num_placed = 0
        self._lost: dict[str, int] = {}  # replicas that lost a call: when, in calls placed

    def update(self, reports: Mapping[str, Report]) -> None:
        """The replicas there are, and what they told. Whatever was known of others is forgotten."""
        self._replicas = {name: self._replicas.get(name) or Replica() for name in reports}
        self._lost = {name: when for name, when in self._lost.items() if name in reports}
        for name, report in reports.items():
            self._replicas[name].tell(report)

    def rank(self, order: Order) -> list[str]:
        """All replicas, the best one first; those that the guard masks come later, those that lost a call last."""
        self._open.discard(order)
        loads = self._loads(order.source)
        lost = {name for name, when in self._lost.items() if self._num_placed - when < SHUNNED_FOR}
        hits = {name: replica.hits(order) for name, replica in self._replicas.items()}

        def score(name: str) -> tuple[int, int]:
            to_prefill = loads[name].num_tokens + order.num_tokens - hits[name]
            return to_prefill * (loads[name].num_seqs + 1), self._replicas[name].last_placed

        ranked = sorted(self._replicas, key=score)
        group = _holders(hits)
        crowded = bool(ranked) and ranked[0] in group and loads[ranked[0]].num_seqs > 0
        if crowded and self._guard.masks(group, len(ranked)):
            ranked.sort(key=group.__contains__)
        return sorted(ranked, key=lost.__contains__)

    def place(self, order: Order, name: str) -> None:
        """`order` goes to `name`."""
        hits = {other: replica.hits(order) for other, replica in self._replicas.items()}
        self._guard.note(_holders(hits), name, self._replicas)
        self.move(order, name)

    def move(self, order: Order, name: str) -> None:
        """`order` goes to `name`, whatever was planned before."""
        replica = self._replicas.get(name)
        order.replica = name
        order.to_prefill = order.num_tokens - (replica.hits(order) if replica is not None else 0)
        self._open.add(order)
        if replica is None:
            return
        self._num_placed += 1
        replica.last_placed = self._num_placed
        for keys in order.keys:
            replica.known.remember(keys)

    def _loads(self, source: str) -> dict[str, Load]:
        """By replica."""
        for order in self._open:
            if order.has_ended and order.was_lost and order.replica in self._replicas:
                self._lost[order.replica] = self._num_placed
        self._open = {order for order in self._open if not order.has_ended}
        tokens: Counter[str | None] = Counter()
        seqs: Counter[str | None] = Counter()
        for order in self._open:
            seqs[order.replica] += order.num_seqs
            tokens[order.replica] += 0 if order.has_begun else order.to_prefill
        loads = {}
        for name, replica in self._replicas.items():
            others = (load for whose, load in replica.report.loads.items() if whose != source)
            loads[name] = sum(others, Load(tokens[name], seqs[name]))
        return loads


def _holders(hits: Mapping[str, int]) -> Group:
    """The replicas that hold the most of a prompt; none, if none holds any."""
    most = max(hits.values(), default=0)
    return frozenset(name for name, num in hits.items() if num == most) if most else frozenset()
