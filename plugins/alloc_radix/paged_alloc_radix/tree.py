"""RadixTree: the prefix cache as a tree of token runs, with reference-locked paths and leaf-first LRU eviction."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from paged_core.errors import PluginContractError
from paged_core.paging.hits import TOKEN_BYTES, Siblings, common_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.request import Sequence

Origin = tuple[str | None, str | None]
"""Adapter and cache salt: every pair has a tree of its own, so nothing is ever shared across (law 14)."""
_PIECE = 16
"""Blocks of the first piece of a prompt; each further one is twice as long."""


def origin_of(seq: Sequence) -> Origin:
    """The tree that `seq` may share with."""
    return seq.request.adapter, seq.request.cache_salt


def token_blocks(seq: Sequence, start: int, stop: int, block_size: int) -> Iterator[bytes]:
    """The tokens of full blocks `start` to `stop` of `seq`, as the tree compares them: read piece by piece, since a
    match may end long before a prompt does."""
    stride, num = TOKEN_BYTES * block_size, _PIECE
    while start < stop:
        end = min(start + num, stop)
        content = seq.token_slice(start * block_size, end * block_size).tobytes()
        for offset in range(0, len(content), stride):
            yield content[offset : offset + stride]
        start, num = end, 2 * num


class Node:
    """A run of full blocks that nothing branches out of before its end.

    origin      of a root (which holds no blocks), else None
    start       depth of its first block: how many blocks come before it
    tokens      int32 token ids of each block, as bytes
    holders     the blocks that hold each of them; several when sequences computed the same content side by side
    children    what comes after the run, by the tokens of the first block; no two begin with the same block
    siblings    the keys of `children`, in order
    last_used   the tree's clock when a sequence last let go of a block of the run
    queued      the `last_used` under which it waits for eviction, or -1
    """

    __slots__ = ("children", "holders", "last_used", "origin", "parent", "queued", "siblings", "start", "tokens")

    def __init__(self, parent: Node | None, start: int, origin: Origin | None = None) -> None:
        self.parent = parent
        self.origin = origin
        self.start = start
        self.tokens: list[bytes] = []
        self.holders: list[list[int]] = []
        self.children: dict[bytes, Node] = {}
        self.siblings = Siblings()
        self.last_used = 0
        self.queued = -1

    def adopt(self, tokens: bytes, child: Node) -> None:
        """`child` comes after this run and begins with `tokens`."""
        self.children[tokens] = child
        self.siblings.add(tokens)

    def disown(self, tokens: bytes) -> None:
        """The child that begins with `tokens` is gone."""
        del self.children[tokens]
        self.siblings.remove(tokens)


class RadixTree:
    """What is cached, under exact tokens. `refs` are the pool's reference counts, int32 [num_blocks].

    A position is locked while one of its holders is referenced. A sequence holds every position of its path, so what
    comes before a locked position is locked too; hence whenever an unlocked block exists, some leaf ends in one, and
    eviction takes leaves from their ends, least recently used first. An unlocked position has exactly one holder.

    node_of[block] is the node that holds a block, or None; depth[block] its place, counted from the root.
    """

    def __init__(self, refs: NDArray[np.int32]) -> None:
        self._refs = refs
        self.roots: dict[Origin, Node] = {}
        self.node_of: list[Node | None] = [None] * len(refs)
        self.depth = [0] * len(refs)
        self.clock = 0
        self._queue: list[tuple[int, int, Node]] = []
        self._serial = 0

    def match(self, origin: Origin, blocks: Iterable[bytes]) -> list[int]:
        """Blocks that hold the longest cached beginning of `blocks`, one for each; no more of these are asked for."""
        found: list[int] = []
        node, index = self.roots.get(origin), 0
        if node is None:
            return found
        for tokens in blocks:
            if index == len(node.tokens):
                child = node.children.get(tokens)
                if child is None:
                    break
                node, index = child, 0
            if node.tokens[index] != tokens:
                break
            found.append(node.holders[index][0])
            index += 1
        return found

    def closest(self, origin: Origin, before: int | None, tokens: bytes) -> tuple[int, int]:
        """Of the blocks behind `before` (None: the first ones), the one that begins most like `tokens`.

        And how many tokens they share; 0 when there is none.
        """
        node = self.roots.get(origin) if before is None else self._node(before)
        if node is None:
            return -1, 0
        index = 0 if before is None else self.depth[before] - node.start + 1
        if index < len(node.tokens):
            return node.holders[index][0], common_tokens(node.tokens[index], tokens)
        following, common = node.siblings.closest(tokens)
        return (node.children[following].holders[0][0], common) if following else (-1, 0)

    def insert(self, block: int, before: int | None, origin: Origin, tokens: bytes) -> int | None:
        """Enter `block` behind block `before` (None: first). Returns a free block that it makes redundant, if any."""
        node, index = self._place_after(before, origin, tokens)
        if index < len(node.tokens):
            holders = node.holders[index]
            redundant = holders[0] if self._refs[holders[0]] == 0 else None
            if redundant is not None:
                holders.clear()
                self.node_of[redundant] = None
            holders.append(block)
        else:
            redundant = None
            node.tokens.append(tokens)
            node.holders.append([block])
        self.node_of[block], self.depth[block] = node, node.start + index
        return redundant

    def cut_after(self, block: int) -> None:
        """End a run at `block`: what comes behind was not used with it and ages on its own."""
        node = self._node(block)
        length = self.depth[block] - node.start + 1
        if length < len(node.tokens):
            self._split(node, length)

    def is_spare(self, block: int) -> bool:
        """Whether another block holds the same content."""
        return len(self._holders(block)) > 1

    def unlock(self, block: int) -> None:
        """The last reference to the only holder of a position is gone: it may be evicted when its turn comes."""
        node = self._node(block)
        node.last_used = self.clock
        self._offer(node)

    def remove(self, block: int) -> None:
        """Take out a spare `block`: others hold the same content."""
        self._holders(block).remove(block)
        self.node_of[block] = None

    def evict(self) -> int:
        """Take the last block out of the least recently used leaf that ends unlocked."""
        while self._queue:
            time, _, node = self._queue[0]
            if node.last_used == time and self._evictable(node):
                first = node.tokens[0]
                node.tokens.pop()
                (block,) = node.holders.pop()
                self.node_of[block] = None
                self._shortened(node, first)
                return block
            heapq.heappop(self._queue)
            if node.queued == time:
                node.queued = -1
        raise PluginContractError("law 2: an unlocked cached block is counted, but no leaf ends in one")

    def nodes(self) -> Iterator[tuple[Origin, Node]]:
        """Every node with its origin, parents before children; the empty roots are left out."""
        for origin, root in self.roots.items():
            below = list(root.children.values())
            while below:
                node = below.pop()
                yield origin, node
                below += node.children.values()

    # -- small parts ----------------------------------------------------------------------------------------------

    def _node(self, block: int) -> Node:
        node = self.node_of[block]
        assert node is not None, f"block {block} is not in the tree"
        return node

    def _holders(self, block: int) -> list[int]:
        node = self._node(block)
        return node.holders[self.depth[block] - node.start]

    def _place_after(self, before: int | None, origin: Origin, tokens: bytes) -> tuple[Node, int]:
        """Where `tokens` stand or will stand behind `before`: a node and an index into its run."""
        if before is None:
            node = self.roots.setdefault(origin, Node(None, 0, origin))
        else:
            node = self._node(before)
            index = self.depth[before] - node.start + 1
            if index < len(node.tokens):
                if node.tokens[index] == tokens:
                    return node, index
                node = self._split(node, index)
            elif not node.children:
                return node, index
        child = node.children.get(tokens)
        if child is None:
            child = Node(node, node.start + len(node.tokens))
            node.adopt(tokens, child)
        return child, 0

    def _split(self, node: Node, length: int) -> Node:
        """Move the first `length` blocks of the run into a new parent, which is returned."""
        assert node.parent is not None
        upper = Node(node.parent, node.start)
        upper.tokens, node.tokens = node.tokens[:length], node.tokens[length:]
        upper.holders, node.holders = node.holders[:length], node.holders[length:]
        upper.last_used = node.last_used
        upper.adopt(node.tokens[0], node)
        node.parent.children[upper.tokens[0]] = upper
        node.parent, node.start = upper, node.start + length
        for holders in upper.holders:
            for block in holders:
                self.node_of[block] = upper
        return upper

    def _shortened(self, node: Node, first: bytes) -> None:
        """The end of a leaf is gone: an empty one leaves the tree, and what now ends a path may be evictable."""
        parent = node.parent
        if not node.tokens and parent is not None:
            parent.disown(first)
            if parent.origin is not None and not parent.children:
                del self.roots[parent.origin]
            node = parent
        self._offer(node)

    def _evictable(self, node: Node) -> bool:
        return bool(node.tokens) and not node.children and self._refs[node.holders[-1][0]] == 0

    def _offer(self, node: Node) -> None:
        if node.queued == node.last_used or not self._evictable(node):
            return
        if len(self._queue) > 64 + 2 * len(self._refs):  # mostly out of date by now: every node has a block
            self._queue = [entry for entry in self._queue if entry[2].last_used == entry[0]]
            heapq.heapify(self._queue)
        self._serial += 1
        node.queued = node.last_used
        heapq.heappush(self._queue, (node.last_used, self._serial, node))
