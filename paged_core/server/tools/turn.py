"""Turn: the seam between a chat and the way a model writes its answers. A tool format is one implementation of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """New text of the answer's content; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """New part of tool call `index`. The first part of a call has its id and name; `arguments` is JSON text that
    joined over all parts of a call is its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Piece = Text | CallPart


class AnswerReader(Protocol):
    """Reads one choice as it grows. Joined pieces are the same however the text was cut."""

    def feed(self, text: str) -> list[Piece]:
        """New text of the model; pieces that are now certain."""
        ...

    def end(self) -> list[Piece]:
        """The answer ended: what was held back."""
        ...

    def finish_reason(self, reason: str) -> str:
        """OpenAI's finish reason, from the engine's; called after `end`."""
        ...


class Turn(Protocol):
    """One chat request: its prompt, the form its answer must have, and how that is read."""

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids of the prompt. Runs off the event loop. RequestError where the template refuses."""
        ...

    def form(self) -> dict[str, Any] | None:
        """Fields of StructuredOutputsParams that force the answer's form (a required tool call), or None."""
        ...

    def params(self) -> dict[str, Any]:
        """Fields of SamplingParams without which the answer could not be read; they win over the caller's."""
        ...

    def reader(self) -> AnswerReader:
        """A fresh reader, one for each choice."""
        ...
