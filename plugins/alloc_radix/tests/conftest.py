"""A bench for one allocator: sequences, and shorthand for what the ledger would do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from paged_alloc_radix import RadixProvider

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.request import Request, Rows, Sequence


class Bench:
    """One allocator with blocks of four tokens and the rows it serves."""

    def __init__(self, num_blocks=16, max_rows=24, max_len=64, **options):
        need = AllocatorNeed(num_blocks, 0, 4, max_rows, max_len, **options)
        provider = RadixProvider()
        self.alloc = provider.create(need, provider.Settings(), SimpleNamespace())
        self.rows = Rows(max_rows, max_len)
        self.free_rows = list(range(max_rows - 1, -1, -1))

    @property
    def tree(self):
        return self.alloc.pool.tree

    def seq(self, tokens, *, salt=None):
        seq = Sequence(Request(f"r{len(self.free_rows)}", tuple(tokens), SamplingParams(), 0.0, cache_salt=salt))
        seq.bind(self.rows, self.free_rows.pop())
        return seq

    def open(self, seq):
        hits = self.alloc.open(seq)
        self.rows.num_computed[seq.row] = hits
        return hits

    def compute(self, seq):
        """The whole gap. False: no room."""
        if self.alloc.grow(seq, seq.gap) is None:
            return False
        self.rows.num_computed[seq.row] = seq.num_tokens
        self.alloc.publish(seq)
        self.alloc.check()
        return True

    def start(self, tokens, **options):
        seq = self.seq(tokens, **options)
        hits = self.open(seq)
        assert self.compute(seq)
        return seq, hits

    def free(self, *seqs):
        for seq in seqs:
            self.alloc.free(seq)
            self.free_rows.append(seq.row)
            self.alloc.check()

    def cached(self, tokens):
        """Tokens in whole blocks that a prompt would hit now; nothing changes."""
        seq = self.seq([*tokens, 0])
        num = len(self.alloc.find_blocks(seq, len(tokens) // 4)) * 4
        self.free_rows.append(seq.row)
        return num

    def runs(self):
        """Blocks in each node, as (depth, length)."""
        return sorted((node.start, len(node.tokens)) for _, node in self.tree.nodes())


@pytest.fixture
def bench():
    """Makes a Bench."""
    return Bench
