"""The text of a single token, for people: vocabularies store bytes in two disguises."""

from __future__ import annotations

import re
from functools import cache

_DISGUISED = re.compile(r"bytes:(\\x[0-9a-f]{2})+")
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_text(token: str, *, byte_level: bool) -> str:
    """Text of a vocabulary entry: byte-level BPE, or SentencePiece pieces with byte fallback (`<0xF0>`)."""
    if byte_level:
        table = _byte_of_character()
        if all(character in table for character in token):
            return bytes_text(bytes(table[character] for character in token))
        return token
    match = _FALLBACK.fullmatch(token)
    return bytes_text(bytes([int(match[1], 16)])) if match else token.replace("\u2581", " ")


def bytes_text(data: bytes) -> str:
    """UTF-8 as text; anything else as `bytes:\\xf0\\x9f`, which no two byte strings share."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def text_bytes(text: str) -> bytes:
    """The bytes of which `bytes_text` made `text`. (A token that spells out the disguise itself is taken for it.)"""
    return bytes.fromhex("".join(text[6:].split("\\x"))) if _DISGUISED.fullmatch(text) else text.encode()


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, every other byte for a character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
