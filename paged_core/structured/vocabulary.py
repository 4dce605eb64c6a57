"""Vocabulary: the bytes of every token, which is all that a grammar's compiler wants to know of a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.model.token_text import text_bytes

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[id]` is what a token adds to the text, b"" for control tokens and padding: no grammar allows those.

    As many entries as the model has logits. `eos_token_ids` end a sentence; there is at least one.
    """

    tokens: tuple[bytes, ...]
    eos_token_ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes; bytes are written as the characters of the same numbers."""
        return {"tokens": [token.decode("latin-1") for token in self.tokens], "eos": self.eos_token_ids}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Vocabulary:
        """The vocabulary that `to_json` wrote."""
        return cls(tuple(text.encode("latin-1") for text in values["tokens"]), tuple(values["eos"]))


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The first `vocab_size` tokens; what the model has beyond the tokenizer's is padding."""
    known = min(tokenizer.vocab_size, vocab_size)
    tokens = [b"" if tokenizer.is_special(token) else text_bytes(tokenizer.token_text(token)) for token in range(known)]
    tokens += [b""] * (vocab_size - known)
    eos = tuple(token for token in tokenizer.eos_token_ids if token < vocab_size)
    for token in eos:
        tokens[token] = b""
    return Vocabulary(tuple(tokens), eos)
