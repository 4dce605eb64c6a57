"""ByteTokenizer: a tokenizer of 320 entries that needs no files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError
from paged_core.model.token_text import bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECES = ("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed")


class ByteTokenizer:
    """Ids 0..255 are bytes, 256 is EOS, 257 is BOS, 258.. are the two-letter pieces, then the pieces given.

    `pieces` adds tokens of any text (or bytes), so that a scripted model can emit whole words. BOS is not added to
    prompts unless `add_bos`.
    """

    bos_token_id: int | None = 257
    eos_token_ids: tuple[int, ...] = (256,)

    def __init__(self, pieces: Sequence[str | bytes] = (), vocab_size: int = 320, *, add_bos: bool = False) -> None:
        self._bytes: dict[int, bytes] = {i: bytes([i]) for i in range(256)}
        extra = [piece.encode() if isinstance(piece, str) else piece for piece in (*_PIECES, *pieces)]
        self._bytes.update(enumerate(extra, start=258))
        self._ids = {piece: i for i, piece in self._bytes.items()}
        self.vocab_size = max(vocab_size, 258 + len(extra))
        self._add_bos = add_bos

    def id_of(self, piece: str | bytes) -> int:
        """The id of a piece that was given."""
        return self._ids[piece.encode() if isinstance(piece, str) else piece]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """One id per byte."""
        ids = list(text.encode("utf-8"))
        return [257, *ids] if self._add_bos and add_special_tokens and ids[:1] != [257] else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Bytes joined; broken UTF-8 becomes U+FFFD; ids without a piece are empty."""
        special = {256: b"" if skip_special_tokens else b"</s>", 257: b"" if skip_special_tokens else b"<s>"}
        joined = b"".join(special[i] if i in special else self._bytes.get(i, b"") for i in map(int, token_ids))
        return joined.decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        """The piece; part of a character as `bytes:\\xNN`."""
        return bytes_text(self._bytes.get(token_id, self.decode([token_id], skip_special_tokens=False).encode()))

    def is_special(self, token_id: int) -> bool:
        """EOS and BOS."""
        return token_id in (256, 257)

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """One line per message; only the roles user, system and assistant."""
        for message in messages:
            if message["role"] not in ("user", "system", "assistant"):
                raise RequestError(f"the chat template knows no role {message['role']!r}", "messages")
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "
