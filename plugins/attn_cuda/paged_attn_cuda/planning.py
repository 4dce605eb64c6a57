"""SplitRule: into how many ranges the keys of a decode are cut.

A program of decode has some 35 KB of loads under way, so about one a multiprocessor can be enough to keep an H200's
memory busy and PROGRAMS, as many as its shared memory holds at once, always are. With fewer, contexts are cut until
there are nearly that many: one wave of programs, whose ends coincide; never more, since each range writes a partial
result that `merge` reads. The rule asks for nothing that changes while a graph of a step is valid: not for lengths. On
the device a sequence takes no more ranges than it has multiples of SPLIT_TOKENS, and one that takes a single range
writes to `out` at once.
"""

from __future__ import annotations

from dataclasses import dataclass

SPLIT_TOKENS = 128  # SPLIT_UNIT of csrc/elements.cuh
PROGRAMS = 3  # a multiprocessor
MAX_SPLITS = 128
INVARIANT_SPLITS = 8  # where a sequence's neighbours may not matter: whatever their number


@dataclass(frozen=True, slots=True)
class SplitRule:
    """The rule of one need on one device; `programs_per_sequence`: of decode, without splits."""

    programs_per_sequence: int
    num_processors: int
    max_len: int  # 0: not known
    batch_invariant: bool

    def num_splits(self, num_seqs: int) -> int:
        """Into how many ranges, at most, a decode of so many sequences cuts each one's keys."""
        most = min(MAX_SPLITS, -(-self.max_len // SPLIT_TOKENS)) if self.max_len else MAX_SPLITS
        if self.batch_invariant:
            return min(INVARIANT_SPLITS, most)
        wanted = self.num_processors * PROGRAMS // max(1, num_seqs * self.programs_per_sequence)
        return max(1, min(wanted, most))

    def most_parts(self, max_rows: int) -> int:
        """The largest number of (sequence, range) pairs with a partial result, for up to `max_rows` sequences."""
        counts = ((n, self.num_splits(n)) for n in range(1, max_rows + 1))
        return max((n * splits for n, splits in counts if splits > 1), default=0)
