from __future__ import annotations

import pytest

from paged_core.model.token_text import bytes_text, text_bytes
from paged_core.structured.vocabulary import vocabulary_of
from paged_core.testing.tokenizer import ByteTokenizer


@pytest.mark.parametrize("data", [b"a", b" the", "é😀".encode(), b"\xf0\x9f", b"\xff", b"bytes:", b"", b"\n"])
def test_bytes_survive_their_disguise(data):
    assert text_bytes(bytes_text(data)) == data


def test_a_piece_of_a_character_is_its_bytes_and_control_tokens_are_nothing():
    vocabulary = vocabulary_of(ByteTokenizer(), 400)
    assert vocabulary.tokens[0xF0] == b"\xf0"
    assert vocabulary.tokens[258] == b"th"
    assert vocabulary.tokens[256] == vocabulary.tokens[257] == vocabulary.tokens[399] == b""
    assert len(vocabulary.tokens) == 400
    assert vocabulary.eos_token_ids == (256,)


def test_a_model_smaller_than_its_tokenizer_knows_only_what_it_can_say():
    vocabulary = vocabulary_of(ByteTokenizer(), 200)
    assert len(vocabulary.tokens) == 200
    assert vocabulary.eos_token_ids == ()


@pytest.mark.model
def test_the_real_vocabulary_spells_texts_that_it_encodes(smollm2):
    from paged_core.api.loader import LoaderNeed
    from paged_core.testing.build import default_plugins

    tokenizer = default_plugins().create("loader", "load_gguf", LoaderNeed(str(smollm2))).tokenizer()
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size)
    for text in ("Hello, world!", " naïve 😀\n\n  x = {'a': 1}", "日本語 العربية"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(vocabulary.tokens[token] for token in ids).decode() == text
