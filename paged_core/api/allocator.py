"""Block allocators: who owns which block of the KV pool (paper, sections 4.2 to 4.5).

The pool is `num_blocks` device blocks and `num_host_blocks` host blocks of `block_size` slots each. A sequence's table
lists its blocks in order; a block may be in several tables (fork, prefix cache) and then counts its references.

Laws, asserted by `check()` (numbers of the design):
  1  references held by tables (plus pins) equal the ref count of every block
  2  the free list is exactly the blocks with ref 0, without duplicates
  3  table length == ceil(tokens / block_size) for resident sequences, 0 for dropped ones, host-only for swapped ones
  4  a block written this step has ref 1 and no published hash: shared and published blocks are copied first
  5  tail waste of a sequence < block_size slots; nothing is reserved for the future
  8  after the last sequence is freed, free == total
  9  a copy's source stays referenced until the copy ran: by a table or, when the copier was the last to hold it, by a
     pin that ends with the next `scratch` or when the copier is shrunk, swapped out or freed
 13  at most num_tokens - 1 tokens of a sequence come from the prefix cache. They fill whole blocks, but with
     `partial_hits` the last block of the table may be published with the hit's end inside it: its tokens up to that end
     are the sequence's, what follows is another's and never read; until the first `grow` copied it, the table covers
     exactly the hit
 14  hash keys chain over parent, tokens, adapter and salt; the root is random per process unless a seed is set
Laws 3 and 5 do not bind allocators that declare `reserves_ahead`.

Capabilities: prefix_cache, partial_hits (hits may end inside a block), swap, shrink,
  fork            branches share blocks, and only the last, partly filled one is ever copied. Who does not declare it
                  serves requests of several branches by copies, or refuses them (`refuses`)
  reserves_ahead  a sequence may hold blocks that it does not need yet, and may move as a whole when it grows: every
                  block that holds a token is copied then
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.request import Group, Request, Sequence


@dataclass(frozen=True, slots=True)
class AllocatorNeed:
    """What the engine asks of an allocator. `num_blocks` is 0 while the pool's size is not known yet (probe only).

    `prefix_cache` permits caching; an allocator that has none accepts it and never reports a hit.
    """

    num_blocks: int
    num_host_blocks: int
    block_size: int
    max_rows: int
    max_len: int
    prefix_cache: bool = True
    hash_seed: int | None = None
    required: frozenset[str] = frozenset()


class BlockCopy(NamedTuple):
    """Copy all layers of device block `src` to device block `dst` before this step's writes."""

    src: int
    dst: int


class SwapPair(NamedTuple):
    """Move all layers of a block between tiers. For swap-out `src` is a device block and `dst` a host block."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class BlockStats:
    """A snapshot of the pool, in blocks unless said. `free` includes cached blocks nobody references."""

    total: int
    free: int
    cached_free: int
    shared: int
    host_total: int
    host_free: int
    tail_waste_slots: int
    prefix_queries: int  # tokens looked up
    prefix_hits: int  # tokens found
    num_copies: int
    num_evictions: int  # cached blocks overwritten
    saved: int = 0  # references beyond the first of each device block: what sharing saves
    ref_counts: tuple[int, ...] = ()
    """Device blocks by number of references: [k - 1] counts those with k, the last place all with that many or more.

    Sums to `used`. Empty when the allocator does not count.
    """

    @property
    def used(self) -> int:
        """Blocks referenced by some table."""
        return self.total - self.free


class BlockMarks(NamedTuple):
    """What an allocator knows of each block; copies, which any thread may read."""

    refs: NDArray[np.int32]  # [num_blocks] references, pins included
    cached: NDArray[np.bool_]  # [num_blocks] whether the content can be hit, referenced or not
    host_refs: NDArray[np.int32]  # [num_host_blocks]


class Scratch(ABC):
    """A block budget for one decision: the scheduler plans against it, nothing is allocated.

    Authoritative: what `take` accepted, the ledger can apply. Holds deltas only; a new one is cheap.
    """

    @property
    @abstractmethod
    def free(self) -> int:
        """Blocks still free after everything taken and given back so far."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Blocks of the pool."""

    @abstractmethod
    def gap(self, group: Group) -> int:
        """Tokens that `group` must compute before it samples, after prefix hits it would take if it ran now."""

    @abstractmethod
    def need(self, group: Group, num_tokens: int) -> int:
        """Blocks that computing `num_tokens` more tokens of `group` would consume now, beyond what it already took.

        More than `free` exactly if there is no room: an allocator whose blocks must be neighbours says so, however many
        are free.
        Counts fresh blocks, copies of shared or published last blocks, prefix hits on cached blocks that are free now
        (a hit consumes them, the source of a copy too: it is pinned through the step), and for a swapped group its
        return from the host. A group off the device is charged its whole return. `num_tokens` is spread over branches
        by the rule of `paged_core.api.request.spread`.
        """

    @abstractmethod
    def take(self, group: Group, num_tokens: int) -> bool:
        """Consume `need(group, num_tokens)` blocks. False: no room, nothing taken."""

    @abstractmethod
    def need_decodes(self) -> int:
        """Blocks that `take_decodes` would consume now."""

    @abstractmethod
    def take_decodes(self) -> bool:
        """`take` one token per branch for every running group that decodes, was not given back and has not taken yet.

        All or nothing; the cheap way when there are many. False: no room, nothing taken.
        """

    @abstractmethod
    def give_back(self, group: Group) -> int:
        """Evict `group` in this plan; returns the blocks that the *set* of victims so far has freed by adding it.

        A block shared with a group that stays frees nothing; one shared among victims is freed by the last of them.
        Raises PluginContractError when the group has already taken this step (law 11).
        """


class Allocator(ABC):
    """Owns block ids of both tiers and the block tables. The ledger is its only caller.

    `tables` is int32 [max_rows, ceil(max_len / block_size)]: row r lists the device blocks of the sequence with row r.
    Entries beyond the sequence's length are meaningless. Attention reads it as it is.
    Methods that return None instead of a result had no room and changed nothing. Wrong use (freeing twice, growing a
    sequence that is not open) raises PluginContractError and changes nothing.

    A block freed while a step is in flight is not reused before it ends: the ledger sees to it, which calls `free` only
    after that step was collected, and `publish` with `num_computed` as of a step that was collected (design 4b.2). Two
    things remain: `num_tokens` and `num_computed` may count a token that is not known yet, always the last one; and
    pins of copies end with the next `scratch`, which is not asked for while a step with copies is in flight.
    """

    block_size: int
    num_blocks: int
    tables: NDArray[np.int32]

    def refuses(self, request: Request) -> str | None:
        """Why `request` could not run even with the whole pool to itself; None, the default: it can.

        Asked when a request comes, which is then refused with these words: waiting for room that will never be there
        it would hold up everyone behind it. The engine itself refuses prompts of more blocks than the pool has.
        """
        return None

    @abstractmethod
    def scratch(self, running: list[Group], decode_rows: NDArray[np.int32]) -> Scratch:
        """A fresh budget. `running` are the running groups, `decode_rows` the rows of those that decode.

        It begins a plan: copies that `grow` asked for before have run, or will run before anything of this plan does.
        """

    @abstractmethod
    def open(self, seq: Sequence) -> int:
        """Start a table for `seq` (its `row` is set) and take prefix hits; returns how many tokens were hit.

        At most num_tokens - 1 (law 13); 0 when `seq.cold`. A published block is never written (design 4b.8): a hit
        whose last block is to be written, as every full-prompt hit's, either leaves that block out or, with
        `partial_hits`, takes it into the table and `grow` copies it first. What is hit depends on nothing that changes
        between a scratch and the openings of its plan. The ledger opens every newcomer before it grows anyone, so that
        allocation cannot evict a hit that a scratch counted on.
        """

    @abstractmethod
    def grow(self, seq: Sequence, num_tokens: int) -> list[BlockCopy] | None:
        """Make positions num_computed .. num_computed + num_tokens - 1 of `seq` writable.

        Appends blocks; replaces a shared or published last block by a copy (copy-on-write). None: no room, nothing
        changed.
        """

    def grow_decodes(self, seqs: list[Sequence], rows: NDArray[np.int32]) -> list[BlockCopy] | None:
        """`grow(seq, 1)` for many sequences at once; override when it can be done on columns.

        The default calls `grow` for each and is therefore not atomic: the ledger calls it only for what a scratch
        accepted.
        """
        copies: list[BlockCopy] = []
        for seq in seqs:
            made = self.grow(seq, 1)
            if made is None:
                return None
            copies += made
        return copies

    @abstractmethod
    def publish(self, seq: Sequence) -> None:
        """Enter full blocks below `seq.num_computed` into the prefix cache. Called after the step that wrote them."""

    @abstractmethod
    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give `child` (its `row` is set) the parent's blocks, one more reference each. Never allocates.

        Without the capability: `child` reads what its parent has computed, and its next `grow` copies that.
        """

    @abstractmethod
    def free(self, seq: Sequence) -> None:
        """Drop the table of `seq`, on whichever tier, tail first. A sequence without a table is left alone."""

    @abstractmethod
    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        """Drop tail blocks of `seq` that lie wholly at or beyond position `num_tokens`."""

    @abstractmethod
    def swap_out(self, group: Group) -> list[SwapPair] | None:
        """Move every table of `group` to the host tier; a shared block moves once. None: no host room."""

    @abstractmethod
    def swap_in(self, group: Group) -> list[SwapPair] | None:
        """The reverse. None: no device room."""

    @abstractmethod
    def stats(self) -> BlockStats:
        """A snapshot; cheap enough for every step."""

    def held_slots(self, rows: NDArray[np.int32], computed: NDArray[np.int32]) -> NDArray[np.int32]:
        """Slots set aside for each of `rows`, resident on the device with `computed` tokens each; int [rows].

        At least `computed`. Simulations split memory by it: what a row holds beyond its tokens waits for more of them,
        or for ever. The default is what law 3 says. Who reserves ahead answers for itself, with what was asked for:
        slots that a run has beyond that because it was rounded up are lost like those between runs (paper, Fig. 2).
        """
        return -(-computed // self.block_size) * self.block_size

    def marks(self) -> BlockMarks | None:
        """Every block's state between steps, for a map of the pool; cheap enough for a few times a second.

        None, the default: not told, and who draws the map counts the tables of running sequences.
        """
        return None

    @abstractmethod
    def check(self) -> None:
        """Assert the laws above over the whole pool. Raises PluginContractError naming the law. Not for hot paths."""
