"""Prompts: token ids for a trace's requests, made when each arrives, so that equal block names are equal tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.workload.traces import Arrival


class Prompts:
    """Ids below `vocab_size`. A block is its name, written in digits of the vocabulary, then one and the same token.

    Tokens that no name stands for belong to their request alone: it brings a cache salt where it has no names.
    """

    def __init__(self, vocab_size: int) -> None:
        self._base = vocab_size
        self._numbers: dict[int, int] = {}  # name -> in the order of appearance

    def of(self, arrival: Arrival) -> list[int]:
        """The prompt's ids."""
        ids = [0] * arrival.prompt_tokens
        for place, name in enumerate(arrival.blocks):
            number, at = self._numbers.setdefault(name, len(self._numbers)), place * arrival.block_tokens
            for offset in range(min(arrival.block_tokens, len(ids) - at)):
                ids[at + offset] = number % self._base
                number //= self._base
                if not number:
                    break
        return ids
