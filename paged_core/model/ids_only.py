"""IdsOnly: a tokenizer for models without text: simulated ones, and those of random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class IdsOnly:
    """For requests that bring ids and want no text."""

    bos_token_id: int | None = None

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """RequestError: there is no text here."""
        raise RequestError("this model knows no text; give token ids", "prompt")

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The ids, spelled out."""
        return " ".join(map(str, token_ids))

    def token_text(self, token_id: int) -> str:
        """The id, spelled out."""
        return str(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether it ends a sequence."""
        return token_id in self.eos_token_ids

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """RequestError: there is no template here."""
        raise RequestError("this model has no chat template", "messages")
