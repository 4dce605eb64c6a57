from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from paged_core.model.token_text import bytes_text, token_text


def test_museum_38_the_parts_of_an_emoji_are_told_apart_and_never_empty():
    """Four byte-fallback pieces, and the same four bytes in a byte-level vocabulary."""
    pieces = [f"<0x{byte:02X}>" for byte in "\U0001f600".encode()]
    texts = [token_text(piece, byte_level=False) for piece in pieces]
    assert texts == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    word = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("\U0001f600")[0][0]
    assert [token_text(character, byte_level=True) for character in word] == texts
    assert token_text(word, byte_level=True) == "\U0001f600"


def test_every_byte_goes_through_the_byte_level_table():
    for byte in range(256):
        character = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))[0][0]
        assert token_text(character, byte_level=True) == chr(byte)
    assert len(set(pre_tokenizers.ByteLevel.alphabet())) == 256


@pytest.mark.parametrize(
    ("token", "byte_level", "text"),
    [("\u0120in", True, " in"), ("\u2581in", False, " in"), ("<0x41>", False, "A"), ("<0x41>", True, "<0x41>")],
)
def test_spaces_are_kept_and_typed_markers_stay_text(token, byte_level, text):
    assert token_text(token, byte_level=byte_level) == text


def test_broken_utf8_is_shown_byte_by_byte():
    assert bytes_text(b"a\xe4") == "bytes:\\x61\\xe4"
