"""Plan: a decision made against a scratch and then carried out in the ledger's order, which must succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.request import Group, GroupState, Residency, share_out, spread

if TYPE_CHECKING:
    from paged_conformance.oracles.allocator_world import World
    from paged_core.api.request import Sequence


class Plan:
    """One step. `running` groups are told to the scratch; others enter by being taken."""

    def __init__(self, world: World, running: list[Group]) -> None:
        self.world = world
        self.decoding = [group for group in running if group.decoding]
        self.scratch = world.scratch(running, self.decoding)
        self.runs: dict[Group, int] = {}
        self.victims: list[Group] = []
        self.decodes = False
        world.journal.append(f"scratch(running={[group.id for group in running]}) with {self.scratch.free} free")
        self._expect(self.scratch.free == world.free, "a fresh scratch has what stats() says is free")

    def take(self, group: Group, num_tokens: int) -> bool:
        """Take; `need` must have told the price."""
        free, need = self.scratch.free, self.scratch.need(group, num_tokens)
        taken = self.scratch.take(group, num_tokens)
        self.world.journal.append(f"need({group.id}, {num_tokens}) = {need}, {free} free; take -> {taken}")
        self._expect(taken == (need <= free), "take accepts exactly what need says fits")
        self._expect(self.scratch.free == free - need * taken, "take consumes exactly what need said")
        if taken:
            self.runs[group] = self.runs.get(group, 0) + num_tokens
        return taken

    def take_decodes(self) -> bool:
        """Take one token per branch for all that decode; all or nothing."""
        free, need = self.scratch.free, self.scratch.need_decodes()
        taken = self.scratch.take_decodes()
        self.world.journal.append(f"need_decodes() = {need}, {free} free; take_decodes -> {taken}")
        self._expect(taken == (need <= free), "take_decodes accepts exactly what need_decodes says fits")
        self._expect(self.scratch.free == free - need * taken, "take_decodes consumes exactly what need_decodes said")
        self.decodes = self.decodes or taken
        return taken

    def give_back(self, group: Group) -> int:
        """Evict `group`: the set of victims frees what no table outside it holds."""
        free = self.scratch.free
        freed = self.scratch.give_back(group)
        model = self.world.model
        wanted = model.freed_by([*self.victims, group]) - model.freed_by(self.victims)
        self.world.journal.append(f"give_back({group.id}) -> {freed}")
        newcomers = any(each.residency is Residency.NONE for each in self.runs)  # they may hold hits on it by now
        if self.world.exact and not newcomers:
            self._expect(freed == wanted, f"give_back: the set of victims frees {wanted} more blocks, not {freed}")
        self._expect(self.scratch.free == free + freed, "give_back returns what it adds to free")
        self.victims.append(group)
        return freed

    def apply(self) -> None:
        """Victims leave, newcomers open, swapped groups return, tables grow: in this order nothing may fail."""
        for group in self.victims:
            self._evict(group)
        swapped = [group for group in self.runs if group.residency is Residency.HOST]
        for group in self.runs:
            if group.residency is Residency.NONE:
                self._open(group)
        for group in swapped:
            self._expect(self.world.swap_in(group) is not None, f"take accepted {group.id}, its return has no room")
        written = []
        if self.decodes:
            written += self._grow_decodes()
        for group, num_tokens in self.runs.items():
            group.state = GroupState.RUNNING
            for seq, num in share_out(spread(group.live), num_tokens):
                if num:
                    self._expect(self.world.grow(seq, num), f"take accepted {group.id}, growing found no room")
                    written.append((seq, num))
        self._expect(
            self.world.free >= self.scratch.free,
            f"the scratch promised {self.scratch.free} free blocks afterwards, {self.world.free} are",
        )
        for seq, num in written:
            self.world.write(seq, num)

    def _grow_decodes(self) -> list[tuple[Sequence, int]]:
        groups = [group for group in self.decoding if group not in self.victims and group not in self.runs]
        seqs = [seq for group in groups for seq in group.live]
        if seqs:
            self._expect(self.world.grow_decodes(seqs), "take_decodes accepted, grow_decodes found no room")
        return [(seq, 1) for seq in seqs]

    def _evict(self, group: Group) -> None:
        group.state, group.residency = GroupState.PREEMPTED, Residency.NONE
        for seq in group.live:
            self.world.drop(seq)

    def _open(self, group: Group) -> None:
        (seq,) = group.live
        gap = self.scratch.gap(group)
        hits = self.world.open(seq)
        self._expect(seq.num_tokens - hits == gap, f"the scratch foresaw a gap of {gap}, opening left {seq.gap}")
        group.residency = Residency.DEVICE

    def _expect(self, ok: bool, law: str) -> None:
        self.world.expect(ok, f"scratch: {law}")
