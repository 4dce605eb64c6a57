"""Copies and swaps move what they say, through the contract, and are timed by the right clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.bench.kernels.cases import Heads, Move
from paged_core.bench.kernels.moves import Moves
from paged_core.bench.kernels.paged import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paged_core.bench.site import Site
    from paged_core.plugins import Plugins

HEADS = Heads(4, 2, 16)
BACKEND = Backend("torch", 8, "float32")
BLOCK_BYTES = 2 * 2 * 8 * 16 * 4


class Spy:
    """Calls by name, and how long the two timers say that they took."""

    def __init__(self, site: Site) -> None:
        self.clocks: list[str] = []
        self.site = dataclasses.replace(site, timer=self.timed("device"), idle_timer=self.timed("idle"))
        self.calls: list[tuple[str, Sequence[Any]]] = []

    def timed(self, name: str) -> Callable[[Callable[[], object]], float]:
        def seconds(action: Callable[[], object]) -> float:
            self.clocks.append(name)
            before = len(self.calls)
            action()
            return (len(self.calls) - before) * 0.25

        return seconds

    def watch(self, moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
        backend = moves._backend
        for name in ("copy_blocks", "swap_blocks"):
            real = getattr(backend, name)
            monkeypatch.setattr(
                backend, name, lambda *given, real=real, name=name: (self.calls.append((name, given)), real(*given))
            )


def test_copies_take_turns_over_disjoint_pairs(plugins: Plugins, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(dataclasses.replace(site, rotation=1 << 17))
    moves = Moves(plugins, Move("copy", HEADS, 2, layers=3), BACKEND, spy.site)
    assert moves.num_bytes == 2 * 3 * BLOCK_BYTES
    spy.watch(moves, monkeypatch)
    seconds = moves.read(rounds=4)
    assert seconds.samples == (0.25,) * 4
    assert set(spy.clocks) == {"device"}
    seen: list[int] = []
    for name, (caches, copies) in spy.calls[:1]:
        assert (name, len(caches), len(copies)) == ("copy_blocks", 3, 2)
    turns = -(-spy.site.rotation // (2 * moves.num_bytes))
    assert 1 < turns <= len(spy.calls)
    for _, (_, copies) in spy.calls[:turns]:
        assert all(isinstance(copy, BlockCopy) for copy in copies)
        seen += [block for copy in copies for block in copy]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_swap_goes_its_way_and_is_timed_until_it_has_arrived(
    plugins: Plugins, site: Site, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    spy = Spy(site)
    moves = Moves(plugins, Move(direction, HEADS, 5, layers=2), BACKEND, spy.site)
    spy.watch(moves, monkeypatch)
    assert moves.read(rounds=2).median == 0.25
    assert set(spy.clocks) == {"idle"}
    _, (sources, targets, pairs) = spy.calls[0]
    assert len(sources) == len(targets) == 2
    assert all(isinstance(pair, SwapPair) for pair in pairs)
    assert len({pair.src for pair in pairs}) == len({pair.dst for pair in pairs}) == 5
    assert moves.needed_bytes == 2 * 2 * moves.num_bytes


class Pinning:
    """An accelerator that pins, or does not."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.pinned = 0

    def pin(self, tensor: object) -> str:
        self.pinned += not self.reason
        return self.reason

    def unpin(self, tensor: object) -> None:
        self.pinned -= 1

    def synchronize(self) -> None:
        assert self.pinned >= 0


@pytest.mark.parametrize("reason", ["", "no room"])
def test_the_hosts_pool_is_pinned_while_it_is_used(plugins: Plugins, site: Site, reason: str) -> None:
    pinning = Pinning(reason)
    moves = Moves(
        plugins,
        Move("out", HEADS, 2, layers=2),
        BACKEND,
        dataclasses.replace(site, accelerator=pinning),  # type: ignore[arg-type]
    )
    with moves._host_pool() as host:
        assert pinning.pinned == (0 if reason else len(host))
    assert (pinning.pinned, moves.refused) == (0, reason)
