from __future__ import annotations

import json

import pytest
from paged_load_gguf.tokens import ALIASES, WORDS, TokenMetadata, build_tokenizer
from tokenizers import Regex, pre_tokenizers

from paged_core.errors import ModelFormatError, ModelUnsupportedError, RequestError

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def reference_strings(shared):
    inputs = (shared / "data/tokenizer/gpt-2.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    return inputs + json.loads((shared / "data/text/naughty_strings.json").read_bytes())


def byte_level(pre="gpt-2", tokens=(), types=(), merges=(), **extra):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*BYTES, *tokens],
        "tokenizer.ggml.token_type": [1] * 256 + list(types or [1] * len(tokens)),
        "tokenizer.ggml.merges": list(merges),
    }
    metadata |= {f"tokenizer.{key.replace('ggml_', 'ggml.')}": value for key, value in extra.items()}
    return build_tokenizer(TokenMetadata(metadata, "test.gguf"))


PIECES = ["▁", "h", "e", "l", "o", "a", "4", "1", "<", "0", "x", ">", "he", "ll", "hell", "hello", "▁hello", "▁h", "▁▁"]


def sentencepiece(pieces=PIECES, scores=None, **extra):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(scores or [-float(i) for i in range(len(pieces))]),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in extra.items()}
    return tokens, build_tokenizer(TokenMetadata(metadata, "test.gguf"))


@pytest.mark.parametrize("pre", [*WORDS, *ALIASES])
def test_byte_level_text_survives_every_word_rule(pre, shared):
    tokenizer = byte_level(pre)
    for text in reference_strings(shared):
        import unicodedata

        wanted = unicodedata.normalize("NFC", text) if ALIASES.get(pre, pre) == "qwen2" else text
        assert tokenizer.decode(tokenizer.encode(text)) == wanted


@pytest.mark.parametrize("pre", ["gpt-2", "smollm"])
def test_words_are_cut_as_the_built_in_rule_cuts_them(pre, shared):
    """`tokenizers` has GPT-2's rule built in; SmolLM2 takes digits one by one before it."""
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    wanted = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), *steps] if pre == "smollm" else steps
    )
    cuts = [pre_tokenizers.Split(Regex(words), "isolated") for words in WORDS[pre]]
    mine = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    for text in reference_strings(shared):
        assert [p for p, _ in mine.pre_tokenize_str(text)] == [p for p, _ in wanted.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["I", "'ve", " 12345", " a", "  ", " b", "!?\n"]),
        ("smollm", ["I", "'ve", " ", "1", "2", "3", "4", "5", " a", "  ", " b", "!?\n"]),
        ("qwen2", ["I", "'ve", " ", "1", "2", "3", "4", "5", " a", "  ", " b", "!?\n"]),
        ("llama-bpe", ["I", "'ve", " ", "123", "45", " a", "  ", " b", "!?\n"]),
    ],
)
def test_word_rules_differ_where_the_models_do(pre, words):
    cuts = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), "isolated") for rule in WORDS[pre]])
    found = [piece for piece, _ in cuts.pre_tokenize_str("I've 12345 a   b!?\n")]
    if pre in ("gpt-2", "smollm"):
        words = [*words[:-1], "!?", "\n"]
    assert found == words


def test_an_unknown_word_rule_is_refused_by_name():
    with pytest.raises(ModelUnsupportedError, match="'klingon' is not one of gpt-2"):
        byte_level("klingon")


def test_an_unknown_tokenizer_model_is_refused_by_name():
    with pytest.raises(ModelUnsupportedError, match="'rwkv'"):
        TokenMetadata({"tokenizer.ggml.model": "rwkv"}, "test.gguf")


def test_control_tokens_are_whole_special_and_hidden_user_tokens_are_whole_and_shown():
    tokenizer = byte_level(tokens=["<|end|>", "<tool>"], types=[3, 4], ggml_eos_token_id=256)
    ids = tokenizer.encode("a<tool><|end|>")
    assert ids == [BYTES.index("a"), 257, 256]
    assert tokenizer.is_special(256)
    assert not tokenizer.is_special(257)
    assert tokenizer.decode(ids) == "a<tool>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<tool><|end|>"


def test_ends_of_turn_are_end_tokens_too():
    tokenizer = byte_level(tokens=["</s>", "<|im_end|>", "<|eot_id|>"], types=[3, 3, 1], ggml_eos_token_id=256)
    assert tokenizer.eos_token_ids == (256, 257)  # the third is no control token
    stated = byte_level(tokens=["</s>", "<x>"], types=[3, 3], ggml_eos_token_id=256, ggml_eot_token_id=257)
    assert stated.eos_token_ids == (256, 257)


def test_bos_comes_where_the_file_or_the_model_says_and_never_twice():
    tokens = {"tokens": ["<s>"], "types": [3], "ggml_bos_token_id": 256}
    assert byte_level(**tokens).encode("a") == [BYTES.index("a")]
    assert byte_level("llama-bpe", **tokens).encode("a") == [256, BYTES.index("a")]
    added = byte_level(**tokens, ggml_add_bos_token=True)
    assert added.encode("a") == added.encode("<s>a") == [256, BYTES.index("a")]
    assert added.encode("a", add_special_tokens=False) == [BYTES.index("a")]
    assert added.encode("<s><s>a") == [256, 256, BYTES.index("a")]  # two were written, two are meant


def test_sentencepiece_joins_best_scores_first_and_prefixes_a_space():
    tokens, tokenizer = sentencepiece()
    assert [tokens[i] for i in tokenizer.encode("hello")] == ["<s>", "▁hello"]
    assert [tokens[i] for i in tokenizer.encode("hello hello")] == ["<s>", "▁hello", "▁hello"]
    scores = [-float(i) for i in range(len(PIECES))]
    scores[PIECES.index("▁▁")] = -1e9
    tokens, tokenizer = sentencepiece(scores=scores)
    assert [tokens[i] for i in tokenizer.encode(" hello", False)] == ["▁", "▁hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_without_a_space_prefix_none_is_added_or_eaten():
    tokens, tokenizer = sentencepiece(add_space_prefix=False)
    assert [tokens[i] for i in tokenizer.encode("hello", False)] == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_bytes_that_are_no_piece_fall_back_and_join_again():
    tokens, tokenizer = sentencepiece()
    ids = tokenizer.encode("삼", add_special_tokens=False)
    assert [tokens[i] for i in ids] == ["▁", "<0xEC>", "<0x82>", "<0xBC>"]
    assert tokenizer.decode(ids) == "삼"
    assert tokenizer.decode(ids[1:2]) == "\ufffd"


def test_a_typed_byte_marker_stays_text():
    tokens, tokenizer = sentencepiece()
    ids = tokenizer.encode("<0x41>", add_special_tokens=False)
    assert [tokens[i] for i in ids] == ["▁", "<", "0", "x", "4", "1", ">"]
    assert tokenizer.decode(ids) == "<0x41>"


def test_runs_of_spaces_stored_as_spaces_keep_their_ids():
    pieces = [*PIECES, "▁▁▁"]
    pieces[PIECES.index("▁▁")] = "  "
    tokens, tokenizer = sentencepiece(pieces, add_space_prefix=False)
    assert tokenizer.encode("  ", add_special_tokens=False) == [259 + pieces.index("  ")]
    assert tokenizer.vocab_size == len(tokens)


def test_damaged_metadata_names_the_key():
    with pytest.raises(ModelFormatError, match="eos_token_id is 999"):
        byte_level(ggml_eos_token_id=999)
    with pytest.raises(ModelFormatError, match="tokenizer in its metadata is damaged"):
        byte_level(merges=["q zz"])
    with pytest.raises(ModelFormatError, match="scores"):
        sentencepiece(scores=[0.0])
    with pytest.raises(ModelFormatError, match="vocabulary, is missing"):
        TokenMetadata({"tokenizer.ggml.model": "gpt2"}, "test.gguf")
    with pytest.raises(ModelFormatError, match="add_bos_token"):
        byte_level(ggml_add_bos_token="yes")


def test_named_chat_templates_are_found():
    variants = {"chat_template": "plain", "chat_template.tool_use": "with tools"}
    tokenizer = byte_level(**variants)
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(messages) == "plain"
    assert tokenizer.apply_chat_template(messages, tools=[{"name": "f"}]) == "with tools"
    with pytest.raises(RequestError, match="no chat template"):
        byte_level().apply_chat_template(messages)
