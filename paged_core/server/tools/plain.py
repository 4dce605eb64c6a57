"""PlainTurn: a conversation without tools; the text is the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.server.rendering import Conversation, prompt_ids
from paged_core.server.tools.turn import Piece, Text

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer


class PlainReader:
    """Everything is content."""

    def feed(self, text: str) -> list[Piece]:
        """All of it."""
        return [Text(text)] if text else []

    def end(self) -> list[Piece]:
        """Nothing was held back."""
        return []

    def finish_reason(self, reason: str) -> str:
        """As it is."""
        return reason


@dataclass(frozen=True, slots=True)
class PlainTurn:
    """A turn whose prompt is the conversation and whose answer is text."""

    chat: Conversation

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        """The template's text as tokens."""
        return prompt_ids(tokenizer, self.chat)

    def form(self) -> dict[str, Any] | None:
        """Free."""
        return None

    def params(self) -> dict[str, Any]:
        """The caller's alone."""
        return {}

    def reader(self) -> PlainReader:
        """A fresh reader."""
        return PlainReader()
