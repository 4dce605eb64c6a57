"""KnownPrefixes: what a router believes to be in the prefix cache of one replica."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class KnownPrefixes:
    """The blocks that were sent to a replica last, at most `capacity` of them: about those that it can still have.

    Law: who knows a block knows all blocks before it in its chain (a parent is always younger than its children, and
    the oldest are forgotten first). Hence `match` may search by halves.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def match(self, keys: Sequence[int]) -> int:
        """How many of the leading blocks are known. Changes nothing."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in self._keys:
                low = middle + 1
            else:
                high = middle
        return low

    def remember(self, keys: Sequence[int]) -> None:
        """The replica will have computed these blocks."""
        for key in reversed(keys[: self.capacity]):
            self._keys[key] = None
            self._keys.move_to_end(key)
        self.resize(self.capacity)

    def resize(self, capacity: int) -> None:
        """Know at most `capacity` blocks from now on."""
        self.capacity = capacity
        while len(self._keys) > capacity:
            self._keys.popitem(last=False)
