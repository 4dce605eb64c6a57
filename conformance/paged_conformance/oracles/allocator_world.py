"""World: one allocator under judgement and the sequences that use it; every call is checked against the model.

Nothing is believed that the allocator says about itself: block ids come from `tables`, and what must be free, shared or
copied follows from the model. `check()` of the allocator is called too, for it must not cry wolf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_conformance.oracles.allocator import AllocatorModel
from paged_conformance.oracles.allocator_shape import PLAIN, Origin, Shape
from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paged_conformance.candidate import Candidate
    from paged_core.api.allocator import Allocator, Scratch, SwapPair

SHOWN_CALLS = 60


class World:
    """Sequences, rows and a journal of the calls made, which every failure prints."""

    def __init__(self, candidate: Candidate, shape: Shape | None = None) -> None:
        need = (shape or Shape()).need(candidate)
        self.alloc: Allocator = candidate.create(need)
        self.size, self.num_blocks = need.block_size, need.num_blocks
        self.exact = not candidate.has("reserves_ahead")  # laws 3 and 5 bind
        self.alloc_forks, self.alloc_swaps = candidate.has("fork"), candidate.has("swap")
        self.partial, self.caches = candidate.has("partial_hits"), need.prefix_cache
        self.model = AllocatorModel(need.num_blocks, need.num_host_blocks, need.block_size, moves=not self.exact)
        self.rows = Rows(need.max_rows, need.max_len)
        self.free_rows = list(range(need.max_rows - 1, -1, -1))
        self.journal = [f"allocator({need})"]
        self.hits: dict[Sequence, int] = {}  # tokens that were hit at the last opening
        self._count = 0

    def expect(self, ok: bool, law: str) -> None:
        """Fail naming the law, with the calls that led here."""
        if not ok:
            shown = (
                self.journal
                if len(self.journal) <= SHOWN_CALLS
                else [self.journal[0], "...", *self.journal[-SHOWN_CALLS:]]
            )
            calls = "\n  ".join(shown)
            raise AssertionError(f"{law}\nafter these {len(self.journal)} calls:\n  {calls}")

    @property
    def free(self) -> int:
        """What the allocator says is free."""
        return self.alloc.stats().free

    def name(self, seq: Sequence) -> str:
        """How the journal calls a branch."""
        return seq.request.id + (f".{seq.index}" if seq.index else "")

    def lawful(self, hits: int, shared: int) -> bool:
        """Whether `hits` tokens may be hit where `shared` leading ones (never the last) are cached.

        All whole blocks must be; of the block after them a beginning may, if `partial_hits` is declared.
        """
        whole = shared // self.size * self.size
        return whole <= hits <= (shared if self.partial else whole)

    # -- making sequences -----------------------------------------------------------------------------------------

    def seq(self, tokens: Iterable[int], origin: Origin = PLAIN) -> Sequence:
        """A new sequence with a row, not opened."""
        self._count += 1
        params = SamplingParams(max_tokens=None, prompt_logprobs=0 if origin.cold else None)
        request = Request(f"r{self._count}", tuple(tokens), params, 0.0, cache_salt=origin.salt, adapter=origin.adapter)
        seq = Sequence(request)
        seq.bind(self.rows, self.free_rows.pop())
        return seq

    def append(self, seq: Sequence, *tokens: int) -> None:
        """Sampled tokens."""
        row = seq.row
        for token in tokens:
            self.rows.tokens[row, self.rows.num_tokens[row]] = token
            self.rows.num_tokens[row] += 1

    def start(self, tokens: Iterable[int], origin: Origin = PLAIN) -> tuple[Sequence, int]:
        """A sequence opened and computed, and how many of its tokens were hit."""
        seq = self.seq(tokens, origin)
        hits = self.open(seq)
        self.expect(self.compute(seq), f"{self.name(seq)} does not fit though the test left room for it")
        return seq, hits

    def group(
        self, *seqs: Sequence, state: GroupState = GroupState.RUNNING, residency: Residency = Residency.DEVICE
    ) -> Group:
        """A group of these branches."""
        return Group(seqs[0].request, list(seqs), state, residency)

    def scratch(self, running: Iterable[Group] = (), decoding: Iterable[Group] = ()) -> Scratch:
        """A fresh budget."""
        rows = [seq.row for group in decoding for seq in group.live]
        scratch = self.alloc.scratch(list(running), np.array(rows, dtype=np.int32))
        self.model.pins.clear()
        return scratch

    # -- calls of the contract, each checked ----------------------------------------------------------------------

    def open(self, seq: Sequence) -> int:
        """Open `seq`; its hits must hold its own past, in whole blocks unless it declares `partial_hits`."""
        hits = self.alloc.open(seq)
        self.journal.append(
            f"open({self.name(seq)}, tokens={seq.token_ids.tolist()}, salt={seq.request.cache_salt!r}, "
            f"adapter={seq.request.adapter!r}, cold={seq.cold}) -> {hits} tokens hit"
        )
        self.expect(0 <= hits <= seq.num_tokens - 1, f"law 13: {hits} of {seq.num_tokens} tokens were hit, not n-1")
        inside = hits % self.size
        self.expect(not inside or self.partial, f"law 13: hits are full blocks, but {hits} tokens were hit")
        self.expect(not (seq.cold and hits), f"a cold sequence was given {hits} hits")
        self.model.tables[seq] = table = self._observed(seq, self.model.cover(hits))
        self.expect(
            not inside or table[-1] in self.model.published,
            f"law 4: {inside} tokens were hit in block {table[-1:]}, which is not published",
        )
        self.model.num_hits += hits
        self.hits[seq] = hits
        self.rows.num_computed[seq.row] = hits
        self.verify()
        return hits

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Grow by `num_tokens`; False: no room."""
        want, free = self.model.growth(seq, num_tokens), self.model.free
        copies = self.alloc.grow(seq, num_tokens)
        self.journal.append(f"grow({self.name(seq)}, {num_tokens}) -> {copies}")
        if copies is None:
            self.expect(not self.exact or want.most_blocks > free, f"{free} blocks are free, {want.most_blocks} needed")
            self.verify()
            return False
        self.expect(want.least_blocks <= free, f"law 1: {want.least_blocks} blocks were found where {free} are free")
        self._judge(self.model.grown([seq], num_tokens, [self._row(seq)], copies))
        return True

    def grow_decodes(self, seqs: list[Sequence]) -> bool:
        """Grow all by one token at once; False: no room."""
        rows = np.array([seq.row for seq in seqs], dtype=np.int32)
        copies = self.alloc.grow_decodes(seqs, rows)
        self.journal.append(f"grow_decodes({[self.name(seq) for seq in seqs]}) -> {copies}")
        if copies is None:
            return False
        self._judge(self.model.grown(seqs, 1, [self._row(seq) for seq in seqs], copies))
        return True

    def write(self, seq: Sequence, num_tokens: int) -> None:
        """What the executor and `commit` do: write the grown positions, account them, publish."""
        start = seq.num_computed
        self.model.write(seq, num_tokens)
        self.rows.num_computed[seq.row] = start + num_tokens
        self.alloc.publish(seq)
        if self.caches:
            self.model.published |= set(self.model.tables[seq][: seq.num_computed // self.size])
        self.journal.append(f"write({self.name(seq)}, {num_tokens}); publish")
        self.verify()

    def compute(self, seq: Sequence, num_tokens: int | None = None) -> bool:
        """Grow and write `num_tokens`, by default the whole gap. False: no room."""
        num_tokens = seq.gap if num_tokens is None else num_tokens
        if not self.grow(seq, num_tokens):
            return False
        self.write(seq, num_tokens)
        return True

    def fork(self, parent: Sequence, at: int | None = None) -> Sequence:
        """A branch that shares the parent's first `at` tokens (default: all it has computed)."""
        self._count += 1
        child = Sequence(parent.request, self._count)
        child.bind(self.rows, self.free_rows.pop())
        computed = parent.num_computed if at is None else at
        self.rows.num_tokens[child.row] = parent.num_tokens if at is None else max(1, at)
        self.rows.tokens[child.row] = self.rows.tokens[parent.row]
        child.parent, child.divergence = parent, computed
        self.rejoin(child)
        return child

    def rejoin(self, child: Sequence) -> None:
        """Share the parent's blocks up to where `child` left it: at its birth, and when a dropped tree comes back."""
        parent, at = child.parent, child.divergence
        assert parent is not None
        self.rows.num_computed[child.row] = at
        self.alloc.fork(parent, child)
        self.journal.append(f"fork({self.name(parent)}, {self.name(child)}) at {at}")
        self.model.tables[child] = self.model.tables[parent][: self.model.cover(at)]
        self.verify()

    def free_seq(self, seq: Sequence) -> None:
        """Free it and give its row back."""
        self.drop(seq)
        seq.finish_reason = "done"
        self.free_rows.append(seq.row)

    def drop(self, seq: Sequence) -> None:
        """Free its blocks and forget what was computed; it may be opened again."""
        self.alloc.free(seq)
        self.journal.append(f"free({self.name(seq)})")
        for held in (self.model.tables, self.model.host_tables, self.model.pins):
            held.pop(seq, None)
        self.rows.num_computed[seq.row] = 0
        self.verify()

    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        """Forget tokens from `num_tokens` on."""
        self.rows.num_computed[seq.row] = num_tokens
        self.rows.num_tokens[seq.row] = max(1, num_tokens)
        self.alloc.shrink(seq, num_tokens)
        self.journal.append(f"shrink({self.name(seq)}, {num_tokens})")
        self.model.tables[seq] = self.model.tables[seq][: self.model.cover(num_tokens)]
        self.model.pins.pop(seq, None)
        self.verify()

    def swap_out(self, group: Group) -> list[SwapPair] | None:
        """Move a group to the host; None: no room there."""
        sources, room = self.model.blocks_of(group), self.model.host_free
        pairs = self.alloc.swap_out(group)
        self.journal.append(f"swap_out({[self.name(seq) for seq in group.live]}) -> {pairs}")
        self.expect((pairs is None) == (len(sources) > room), f"{len(sources)} blocks, {room} free on the host")
        if pairs is None:
            self.verify()
            return None
        self._judge(self.model.moved_out(group, pairs))
        group.residency = Residency.HOST
        self.verify()
        return pairs

    def swap_in(self, group: Group) -> list[SwapPair] | None:
        """Bring a group back; None: no room on the device."""
        sources, free = self.model.host_blocks_of(group), self.model.free
        pairs = self.alloc.swap_in(group)
        self.journal.append(f"swap_in({[self.name(seq) for seq in group.live]}) -> {pairs}")
        if pairs is None:
            self.expect(not self.exact or len(sources) > free, f"{len(sources)} blocks come back, {free} are free")
            self.verify()
            return None
        self._judge(self.model.moved_in(group, pairs))
        group.residency = Residency.DEVICE
        self.verify()
        return pairs

    def drain(self) -> None:
        """Free everything: the pool must be whole again (law 8)."""
        for seq in [*self.model.tables, *self.model.host_tables]:
            self.free_seq(seq)
        stats = self.alloc.stats()
        self.expect(stats.free == stats.total, f"law 8: {stats.total - stats.free} blocks leaked")
        self.expect(stats.host_free == stats.host_total, "law 8: host blocks leaked")

    # -- what always holds ----------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Tables, counts and memory against the model; the allocator's own `check` must agree."""
        stats, model = self.alloc.stats(), self.model
        for seq, table in model.tables.items():
            seen = self._observed(seq, len(table))
            self.expect(seen == table, f"law 1: the table of {self.name(seq)} reads {seen}, it should be {table}")
            foreign = model.first_foreign(seq, seq.num_computed)
            self.expect(foreign is None, f"{self.name(seq)} reads another's memory at position {foreign}")
        self.expect(
            stats.free == model.free if self.exact else stats.free <= model.free,
            f"laws 1, 2, 3: {stats.free} blocks are said to be free, tables leave {model.free}",
        )
        self.expect(stats.total == self.num_blocks, f"stats.total is {stats.total}, the pool has {self.num_blocks}")
        self.expect(stats.shared == model.shared, f"law 1: stats.shared is {stats.shared}, not {model.shared}")
        if stats.ref_counts and self.exact:
            counts = model.ref_counts(len(stats.ref_counts))
            self.expect(stats.ref_counts == counts, f"law 1: stats.ref_counts are {stats.ref_counts}, not {counts}")
            self.expect(stats.saved == model.saved, f"law 1: stats.saved is {stats.saved}, not {model.saved}")
        self.expect(stats.host_free == model.host_free, f"host: {stats.host_free} free, not {model.host_free}")
        self.expect(stats.num_copies == model.num_copies, f"{stats.num_copies} copies counted, not {model.num_copies}")
        self.expect(stats.prefix_hits == model.num_hits, f"{stats.prefix_hits} hits counted, not {model.num_hits}")
        self.expect(0 <= stats.cached_free <= stats.free, f"cached_free {stats.cached_free} exceeds free {stats.free}")
        self._verify_marks(stats.cached_free)
        self.alloc.check()

    def _verify_marks(self, cached_free: int) -> None:
        """What the allocator tells of each block, if it does."""
        marks = self.alloc.marks()
        if marks is None:
            return
        num_held, used = int((marks.refs > 0).sum()), self.alloc.stats().used
        self.expect(num_held == used, f"law 1: marks() tell {num_held} blocks held, stats {used}")
        if not self.exact:
            return
        held = {"refs": self.model.refs(), "host_refs": self.model.host_refs()}
        for name, told in (("refs", marks.refs), ("host_refs", marks.host_refs)):
            seen = {int(block): int(told[block]) for block in told.nonzero()[0]}
            self.expect(seen == dict(held[name]), f"law 1: marks().{name} are {seen}, tables hold {dict(held[name])}")
        num_cached = int(((marks.refs == 0) & marks.cached).sum())
        self.expect(num_cached == cached_free, f"marks() tell {num_cached} cached free blocks, stats {cached_free}")

    def _observed(self, seq: Sequence, length: int) -> list[int]:
        return self._row(seq)[:length]

    def _row(self, seq: Sequence) -> list[int]:
        return [int(block) for block in self.alloc.tables[seq.row]]

    def _judge(self, broken: Iterator[str]) -> None:
        for law in broken:
            self.expect(False, law)
