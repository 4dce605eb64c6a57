"""SplitRule: into how many parts a decode's context is cut. It asks for nothing that changes while a graph is valid.

A step of few long sequences has too few programs to load all of the memory system; cutting contexts makes more. What
parts leave has to be written, read and merged, so there are no more of them than needed: the smallest number that
keeps the device as busy as the best one does, within 15 %. Busy is the share of slots that work in a wave of programs,
(programs / slots) over the number of waves; a device has PROGRAMS_PER_PROCESSOR slots a processor.

On the device a sequence takes one part for every `split_tokens` tokens of its context, but at least one and at most
`num_splits`; one that takes a single part writes its result where it belongs, and nothing is merged.
"""

from __future__ import annotations

from functools import lru_cache

PROGRAMS_PER_PROCESSOR = 2
MAX_SPLITS = 64
INVARIANT_SPLITS = 8
"""Where a result may not depend on the batch, every sequence may have as many: the length alone decides."""
NEARLY_BEST = 0.85


class SplitRule:
    """The rule for one device and one need; `max_len` 0 = contexts of any length."""

    def __init__(self, num_kv_heads: int, num_processors: int, max_len: int, split_tokens: int) -> None:
        self.split_tokens = split_tokens
        self._num_kv_heads = num_kv_heads
        self._slots = num_processors * PROGRAMS_PER_PROCESSOR
        self._most = min(MAX_SPLITS, -(-max_len // split_tokens)) if max_len else MAX_SPLITS
        self.num_splits = lru_cache(maxsize=4096)(self._num_splits)

    def _num_splits(self, num_seqs: int) -> int:
        programs = num_seqs * self._num_kv_heads
        if programs >= NEARLY_BEST * self._slots:
            return 1
        busy = [self._busy(programs * splits) for splits in range(1, self._most + 1)]
        return next(splits for splits, share in enumerate(busy, 1) if share >= NEARLY_BEST * max(busy))

    def _busy(self, programs: int) -> float:
        waves = programs / self._slots
        return waves / -(-programs // self._slots)


class InvariantSplits(SplitRule):
    """As many for every batch."""

    def _num_splits(self, num_seqs: int) -> int:
        return min(INVARIANT_SPLITS, self._most)
