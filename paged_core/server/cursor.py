"""Cursor: what of one choice was sent already, and what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.api.output import CompletionOutput


@dataclass(frozen=True, slots=True)
class News:
    """New text and tokens of a choice, with the log-probabilities of these tokens; how it ended if it did."""

    text: str
    token_ids: list[int]
    logprobs: Sequence[Any]
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Cursor:
    """Reads a choice's cumulative outputs; each says something once. Tokens wait for the text that they become part of
    (half a character shows nothing)."""

    def __init__(self) -> None:
        self.ended = False
        self._num_chars = 0
        self._num_tokens = 0

    def news(self, branch: CompletionOutput) -> News | None:
        """What is new, or None."""
        text = branch.text[self._num_chars :]
        if self.ended or (not text and branch.finish_reason is None):
            return None
        tokens = branch.token_ids[self._num_tokens :]
        logprobs = [] if branch.logprobs is None else branch.logprobs[self._num_tokens :]
        self._num_chars, self._num_tokens = len(branch.text), len(branch.token_ids)
        self.ended = branch.finish_reason is not None
        return News(text, tokens, logprobs, branch.finish_reason, branch.stop_reason)
