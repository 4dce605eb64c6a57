"""Order: one call as the router sees it, from the moment it waits for a replica to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

PrefixKeys = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Order:
    """Shared between who sends a call and the router of the same process, which never speak to each other otherwise.

    keys        of the full blocks of every prompt, as `prefix_keys` makes them; none where no replica caches prefixes
    num_tokens  prompt tokens of all prompts
    num_seqs    sequences the call decodes at once
    source      who sends: a replica reports its load by sources, since a router knows its own calls better
    replica     where it is, or None; written by the router
    to_prefill  tokens that were not expected in the replica's cache; written by the router
    has_begun   its first output has come: nothing is left to prefill
    has_ended   it burdens nobody any more
    was_lost    it ended because its replica died or could not be reached
    """

    keys: tuple[PrefixKeys, ...]
    num_tokens: int
    num_seqs: int
    source: str
    replica: str | None = None
    to_prefill: int = 0
    has_begun: bool = False
    has_ended: bool = False
    was_lost: bool = False

    def __reduce__(self) -> tuple[type[Order], tuple[tuple[PrefixKeys, ...], int, int, str]]:
        """What a replica is told: no keys, for they may be many and are the router's alone."""
        return Order, ((), self.num_tokens, self.num_seqs, self.source)


def prefix_keys(token_ids: Sequence[int], block_size: int, root: Hashable) -> PrefixKeys:
    """A key for each full block, which stands for everything up to its end. `root` is whatever divides caches (salt,
    adapter): equal tokens below different roots have nothing in common. Keys are comparable in one process only."""
    key, keys = hash(root), []
    for end in range(block_size, len(token_ids) + 1, block_size):
        key = hash((key, *token_ids[end - block_size : end]))
        keys.append(key)
    return tuple(keys)
