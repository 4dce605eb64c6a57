"""PrefixKeys: what identifies the content of a full block: its tokens and everything before them (law 14)."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from paged_core.api.request import Sequence

DIGEST_BYTES = 16


class BlockKey(NamedTuple):
    """Identity of a full block. Comparing two keys compares tokens exactly: a hash collision is a miss, not a hit.

    `digest` is over the parent's digest and this block's tokens; the first block's parent is the root, which is over
    the secret of this process, the adapter and the salt.
    """

    digest: bytes
    parent: bytes
    tokens: bytes  # int32 token ids, block_size of them


def digest_of(parent: bytes, tokens: bytes) -> bytes:
    """The hash of a block's tokens, chained to what comes before."""
    return blake2b(parent + tokens, digest_size=DIGEST_BYTES).digest()


class PrefixKeys:
    """Computes block keys and remembers each sequence's chain, so that a blocked head of queue is not hashed again.

    The secret is random unless `seed` is given: nobody outside can construct two prompts with one key. With the same
    seed two processes compute the same keys.
    """

    def __init__(self, block_size: int, seed: int | None = None) -> None:
        self._block_size = block_size
        self._secret = os.urandom(32) if seed is None else blake2b(str(seed).encode(), digest_size=32).digest()
        self._chains: WeakKeyDictionary[Sequence, list[BlockKey]] = WeakKeyDictionary()

    def chain(self, seq: Sequence, num_blocks: int) -> list[BlockKey]:
        """Keys of at least the first `num_blocks` blocks of `seq`, all of whose tokens are known. Do not change it."""
        chain = self._chains.setdefault(seq, [])
        if len(chain) < num_blocks:
            self._extend(chain, seq, num_blocks)
        return chain

    def inherit(self, parent: Sequence, child: Sequence, num_blocks: int) -> None:
        """`child` shares the first `num_blocks` full blocks of `parent`: so it does their keys."""
        self._chains[child] = self._chains.get(parent, [])[:num_blocks]

    def truncate(self, seq: Sequence, num_blocks: int) -> None:
        """Forget keys beyond `num_blocks` blocks: the tokens there may change."""
        del self._chains.get(seq, [])[num_blocks:]

    def root(self, adapter: str | None, salt: str | None) -> bytes:
        """The parent of a first block. Each field carries its tag and length, so none can pose as the other (A14)."""
        digest = blake2b(key=self._secret, digest_size=DIGEST_BYTES)
        for tag, value in ((b"adapter", adapter), (b"salt", salt)):
            content = b"" if value is None else value.encode("utf-8", "surrogatepass")
            digest.update(tag + (b"-" if value is None else b"+") + len(content).to_bytes(8, "little") + content)
        return digest.digest()

    def _extend(self, chain: list[BlockKey], seq: Sequence, num_blocks: int) -> None:
        size, start = self._block_size, len(chain)
        parent = chain[-1].digest if chain else self.root(seq.request.adapter, seq.request.cache_salt)
        content = seq.token_slice(start * size, num_blocks * size).tobytes()
        stride = 4 * size
        for offset in range(0, (num_blocks - start) * stride, stride):
            tokens = content[offset : offset + stride]
            digest = digest_of(parent, tokens)
            chain.append(BlockKey(digest, parent, tokens))
            parent = digest
