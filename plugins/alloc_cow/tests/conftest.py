"""A bench for one allocator: sequences, a pretend KV memory, and shorthand for what the ledger would do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from paged_alloc_cow import CowProvider

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, GroupState, Request, Residency, Rows, Sequence

NO_PLUGINS = SimpleNamespace()


class Bench:
    """One allocator and the rows it serves.

    `memory[block, offset]` holds a fingerprint of all tokens up to that position, as written by `compute`; `intact`
    then proves that a sequence still reads exactly its own past through its table.
    """

    def __init__(self, num_blocks=16, block_size=4, num_host_blocks=0, max_rows=24, max_len=64, **options):
        need = AllocatorNeed(num_blocks, num_host_blocks, block_size, max_rows, max_len, **options)
        provider = CowProvider()
        self.alloc = provider.create(need, provider.Settings(), NO_PLUGINS)
        self.block_size = block_size
        self.rows = Rows(max_rows, max_len)
        self.memory = np.zeros((num_blocks, block_size), dtype=np.int64)
        self.host_memory = np.zeros((num_host_blocks, block_size), dtype=np.int64)
        self.free_rows = list(range(max_rows - 1, -1, -1))
        self.count = 0

    @property
    def free(self):
        return self.alloc.stats().free

    def seq(self, tokens, *, salt=None, adapter=None, cold=False, num_sequences=1):
        """A new sequence with a row, not opened."""
        self.count += 1
        params = SamplingParams(n=num_sequences, max_tokens=None, prompt_logprobs=0 if cold else None)
        request = Request(f"r{self.count}", tuple(tokens), params, 0.0, cache_salt=salt, adapter=adapter)
        seq = Sequence(request)
        seq.bind(self.rows, self.free_rows.pop())
        return seq

    def open(self, seq):
        hits = self.alloc.open(seq)
        self.rows.num_computed[seq.row] = hits
        return hits

    def copy(self, copies):
        for src, dst in copies:
            self.memory[dst] = self.memory[src]

    def compute(self, seq, num=None):
        """Grow, write and account `num` tokens (the whole gap by default), then publish. False: no room."""
        start = seq.num_computed
        num = seq.gap if num is None else num
        copies = self.alloc.grow(seq, num)
        if copies is None:
            return False
        self.alloc.check()
        self.copy(copies)
        self.write(seq, start, num)
        return True

    def write(self, seq, start, num):
        marks = fingerprints(seq)
        for position in range(start, start + num):
            block = self.alloc.tables[seq.row, position // self.block_size]
            self.memory[block, position % self.block_size] = marks[position]
        self.rows.num_computed[seq.row] = start + num
        self.alloc.publish(seq)

    def append(self, seq, *tokens):
        for token in tokens:
            self.rows.tokens[seq.row, self.rows.num_tokens[seq.row]] = token
            self.rows.num_tokens[seq.row] += 1

    def start(self, tokens, **options):
        """A sequence opened and computed; returns it and the tokens it hit."""
        seq = self.seq(tokens, **options)
        hits = self.open(seq)
        assert self.compute(seq)
        return seq, hits

    def fork(self, parent):
        child = Sequence(parent.request, self.count)
        self.count += 1
        row = self.free_rows.pop()
        child.bind(self.rows, row)
        for column in ("num_tokens", "num_computed"):
            getattr(self.rows, column)[row] = getattr(self.rows, column)[parent.row]
        self.rows.tokens[row] = self.rows.tokens[parent.row]
        child.parent, child.divergence = parent, parent.num_computed
        self.alloc.fork(parent, child)
        return child

    def free_seq(self, seq):
        self.alloc.free(seq)
        self.free_rows.append(seq.row)

    def group(self, *seqs, state=GroupState.RUNNING, residency=Residency.DEVICE):
        return Group(seqs[0].request, list(seqs), state, residency)

    def swap(self, group, direction):
        pairs = getattr(self.alloc, f"swap_{direction}")(group)
        if pairs is not None:
            source, target = (self.memory, self.host_memory)[:: 1 if direction == "out" else -1]
            moved = [(dst, source[src].copy()) for src, dst in pairs]
            for dst, content in moved:
                target[dst] = content
            group.residency = Residency.HOST if direction == "out" else Residency.DEVICE
        return pairs

    def table(self, seq):
        return self.alloc.tables[seq.row, : self.alloc.lengths[seq.row]].tolist()

    def intact(self, seq):
        """Whether every computed position of `seq` reads back as it was written."""
        marks = fingerprints(seq)
        blocks = self.alloc.tables[seq.row]
        size = self.block_size
        return all(self.memory[blocks[p // size], p % size] == marks[p] for p in range(seq.num_computed))

    def scratch(self, running=(), decoding=()):
        rows = [seq.row for group in decoding for seq in group.live]
        return self.alloc.scratch(list(running), np.array(rows, dtype=np.int32))


def fingerprints(seq):
    """One number per position that depends on all tokens up to it, the adapter and the salt."""
    mark = hash((seq.request.adapter, "adapter", seq.request.cache_salt))
    marks = []
    for token in seq.token_ids.tolist():
        mark = hash((mark, token))
        marks.append(mark)
    return marks


@pytest.fixture
def bench():
    """Makes a Bench."""
    return Bench
