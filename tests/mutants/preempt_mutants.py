"""Broken preemption plugins, each preempt_swap with one defect. `test_preempt_mutants.py` names what catches it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.api.hookspecs import hookimpl
from paged_core.api.preemption import Eviction, Preemption, PreemptionNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_core.api.request import Group


class Wrapped(Preemption):
    """preempt_swap, passed on faithfully; a mutant overrides `evict`."""

    def __init__(self, inner: Preemption) -> None:
        self.inner = inner

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        return self.inner.evict(group, num_blocks, host_free)


class UndeclaredMode(Wrapped):
    """Declares swap alone and recomputes where the host is full."""


class UnknownMode(Wrapped):
    """Invents a mode for short sequences."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        answer = self.inner.evict(group, num_blocks, host_free)
        mode: Any = "drop" if num_blocks < 2 else answer.mode
        return replace(answer, mode=mode)


class NegativePrice(Wrapped):
    """Takes the host room that is left off the price."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        answer = self.inner.evict(group, num_blocks, host_free)
        return replace(answer, cost_s=answer.cost_s - 1e-3 * host_free)


class NoNumber(Wrapped):
    """Divides nothing by nothing where there is no host room."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        answer = self.inner.evict(group, num_blocks, host_free)
        return replace(answer, cost_s=answer.cost_s if host_free else float("nan"))


class RaisesWhenFull(Wrapped):
    """Raises out of the step loop because memory is short."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        if num_blocks > host_free:
            raise PluginContractError(f"no host room for {num_blocks} blocks")
        return self.inner.evict(group, num_blocks, host_free)


class CountsInTheGroup(Wrapped):
    """Keeps the group's own books, even when only asked for a price."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        answer = self.inner.evict(group, num_blocks, host_free)
        group.num_preemptions += 1
        return answer


class WipesTheLastToken(Wrapped):
    """Clears the last generated token of a victim, which is not computed yet."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        for seq in group.live:
            if seq.num_output and seq.rows is not None:
                seq.rows.tokens[seq.row, seq.num_tokens - 1] = 0
        return self.inner.evict(group, num_blocks, host_free)


class CountsPrices(Wrapped):
    """Takes every price for an eviction and swaps every other time."""

    calls = 0

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        self.calls += 1
        return self.inner.evict(group, num_blocks, host_free if self.calls % 2 else 0)


class NeverSwaps(Wrapped):
    """Declares swap and never does it."""

    def evict(self, group: Group, num_blocks: int, host_free: int) -> Eviction:
        return self.inner.evict(group, num_blocks, 0)


class MutantProvider(Provider[PreemptionNeed, Preemption]):
    """Offers one mutant."""

    kind = "preempt"
    api = 1
    priority = -1

    def __init__(self, name: str, mutant: type[Wrapped]) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        only_swap = mutant is UndeclaredMode
        self.capabilities = frozenset({"swap"} if only_swap else {"swap", "recompute"})  # type: ignore[misc]
        self._mutant = mutant

    def probe(self, need: PreemptionNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: PreemptionNeed, settings: PluginSettings, plugins: PluginRegistry) -> Preemption:
        return self._mutant(plugins.create("preempt", "preempt_swap", replace(need, required=frozenset())))


MUTANTS = {
    "preempt_undeclared": UndeclaredMode,
    "preempt_unknown_mode": UnknownMode,
    "preempt_negative": NegativePrice,
    "preempt_nan": NoNumber,
    "preempt_raises": RaisesWhenFull,
    "preempt_alters": CountsInTheGroup,
    "preempt_wipes_token": WipesTheLastToken,
    "preempt_counts": CountsPrices,
    "preempt_never_swaps": NeverSwaps,
}


@hookimpl
def paged_preemption() -> list[MutantProvider]:
    return [MutantProvider(name, mutant) for name, mutant in MUTANTS.items()]
