"""What a newcomer finds in a prefix cache: whole blocks, and a last one whose beginning alone is its own."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paged_core.api.request import Sequence
    from paged_core.paging.allocator import PagedAllocator

TOKEN_BYTES = 4
COPY_COST = 1 / 16
"""What copying a token's keys and values costs, in computations of them. A copy moves a whole block, so its beginning
is worth it when it holds this share of the block or more: with 16 tokens a block, one."""


class Hits(NamedTuple):
    """The first `num_tokens` tokens of a sequence are in `blocks`.

    When they end inside a block, the last one of `blocks` is published for another continuation: only its beginning may
    be read, and the first `grow` replaces it by a copy.
    """

    blocks: list[int]
    num_tokens: int


def find_hits(allocator: PagedAllocator, seq: Sequence) -> Hits:
    """What the cache holds of `seq`, never its last token (law 13); nothing when `seq.cold`."""
    if not allocator.caches or seq.cold:
        return Hits([], 0)
    size = allocator.block_size
    blocks = allocator.find_blocks(seq, (seq.num_tokens - 1) // size)
    num = len(blocks) * size
    most = min(size, seq.num_tokens - 1 - num)
    if most < COPY_COST * size or not _affords_copy(allocator, seq):
        return Hits(blocks, num)
    block, common = allocator.find_beginning(seq, blocks, seq.token_slice(num, num + most).tobytes())
    if common == 0 or common < COPY_COST * size:
        return Hits(blocks, num)
    return Hits([*blocks, block], num + common)


def _affords_copy(allocator: PagedAllocator, seq: Sequence) -> bool:
    """Whether `seq`, alone in the pool, has room for the copy beside its source.

    A gang that comes back is not asked: it must fit into the blocks that it filled when it left. The answer depends on
    nothing that a step may change between planning and opening.
    """
    if seq.parent is not None or (seq.num_output and seq.request.params.num_sequences > 1):
        return False
    return -(-seq.num_tokens // allocator.block_size) < allocator.num_blocks


class Siblings:
    """Blocks of tokens that follow the same beginning, in the order of their bytes.

    Of all of them, the one that begins most like some tokens stands next to where these would stand. So a look-up among
    ten thousand continuations of one system prompt costs fourteen comparisons.
    """

    __slots__ = ("ordered",)

    def __init__(self) -> None:
        self.ordered: list[bytes] = []

    def add(self, tokens: bytes) -> None:
        """Enter a block that is not here yet."""
        insort(self.ordered, tokens)

    def remove(self, tokens: bytes) -> None:
        """Take out a block that is here."""
        place = bisect_left(self.ordered, tokens)
        assert self.ordered[place] == tokens
        del self.ordered[place]

    def closest(self, tokens: bytes) -> tuple[bytes, int]:
        """The block that begins most like `tokens`, and how many tokens they share; of equals the first in order.

        No block and 0 when none shares a token.
        """
        place = bisect_left(self.ordered, tokens)
        closest, most = b"", 0
        for each in self.ordered[max(0, place - 1) : place + 1]:
            common = common_tokens(each, tokens)
            if common > most:
                closest, most = each, common
        return closest, most


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens both begin with."""
    most = min(len(one), len(other))
    differ = int.from_bytes(one[:most], "little") ^ int.from_bytes(other[:most], "little")
    if not differ:
        return most // TOKEN_BYTES
    return ((differ & -differ).bit_length() - 1) // (8 * TOKEN_BYTES)  # the lowest bit set is where they part
