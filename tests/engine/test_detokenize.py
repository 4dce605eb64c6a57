"""Incremental decoding with real tokenizers: joined deltas are the text, and no delta shows half a character."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from paged_core.api.loader import LoaderNeed
from paged_core.engine.detokenize import BROKEN, BULK, Detokenizer
from paged_core.testing.build import default_plugins

SPANNING = ("中文".encode()[2:4], "👍🏽".encode()[3:6], b" \xe4\xb8", "é x".encode(), b"he", b" in", b"\x80\x80")
"""Pieces that end in one character and begin in the next, as merges of real vocabularies do."""


class Plain:
    """The part of the contract's Tokenizer that decoding needs; counts the ids it decoded."""

    def __init__(self, fast: FastTokenizer) -> None:
        self.fast = fast
        self.special = {i for i, token in fast.get_added_tokens_decoder().items() if token.special}
        self.num_decoded = 0

    def decode(self, token_ids, skip_special_tokens=True):
        self.num_decoded += len(token_ids)
        return self.fast.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def is_special(self, token_id):
        return token_id in self.special

    def id_of(self, piece):
        return self.fast.token_to_id(piece)


def byte_level() -> Plain:
    """Bytes 0..255 by value, the spanning pieces from 256, then two special tokens and an added one."""
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    hidden = [b for b in range(256) if b not in visible]
    symbol = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    vocab = {symbol[b]: b for b in range(256)}
    for piece in SPANNING:
        vocab["".join(symbol[b] for b in piece)] = len(vocab)
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True), AddedToken("<tool>")])
    return Plain(fast)


def byte_fallback() -> Plain:
    """Byte pieces 0..255 by value, then word pieces with the marked space, as sentencepiece has them."""
    pieces = [f"<0x{b:02X}>" for b in range(256)]
    pieces += ["<unk>", "▁", "▁in", "▁x", "a", "▁world", "é", "한", "<", "0", "x", "E", "D", ">", "▁▁"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return Plain(fast)


BYTE_LEVEL, FALLBACK = byte_level(), byte_fallback()
BYTES = st.text(st.sampled_from("aé 中文한👍🏽\u200d\u0301\ufffe\n"), max_size=12) | st.text(max_size=8)


def deltas(tokenizer, groups, prompt=(), skip=True):
    detokenizer = Detokenizer(tokenizer, list(prompt), skip)
    return [*(detokenizer.push(list(group)) for group in groups), detokenizer.flush()]


def in_groups(draw, ids):
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    return [ids[i:j] for i, j in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@st.composite
def byte_level_ids(draw, text=BYTES):
    """A text's bytes as ids, here and there by a piece that spans characters."""
    rest, ids = draw(text).encode(), []
    while rest:
        fitting = [i for i, piece in enumerate(SPANNING) if rest.startswith(piece)]
        if fitting and draw(st.booleans()):
            ids.append(256 + fitting[0])
            rest = rest[len(SPANNING[fitting[0]]) :]
        else:
            ids.append(rest[0])
            rest = rest[1:]
    return ids


@st.composite
def fallback_ids(draw):
    """Word pieces and characters of byte pieces, mixed."""
    piece = st.sampled_from(["▁", "▁in", "▁x", "a", "▁world", "é", "한", "▁▁"]).map(lambda p: [FALLBACK.id_of(p)])
    character = st.sampled_from("é中한👍\u0301").map(lambda c: list(c.encode()))
    return [i for part in draw(st.lists(piece | character, max_size=12)) for i in part]


@st.composite
def two_texts(draw, ids):
    output = draw(ids)
    return draw(ids), output, in_groups(draw, output)


def check_law(tokenizer, prompt, output, groups):
    shown = deltas(tokenizer, groups, prompt)
    before = tokenizer.decode(prompt)
    assert "".join(shown) == tokenizer.decode([*prompt, *output])[len(before) :]
    assert all(BROKEN not in delta for delta in shown)


@given(two_texts(byte_level_ids()))
@settings(max_examples=200, deadline=None)
def test_byte_level_deltas_join_to_the_text_after_any_prompt(case):
    check_law(BYTE_LEVEL, *case)


@given(two_texts(fallback_ids()))
@settings(max_examples=200, deadline=None)
def test_byte_fallback_deltas_join_to_the_text_after_any_prompt(case):
    check_law(FALLBACK, *case)


@given(st.lists(st.integers(0, 262), max_size=24), st.data())
@settings(max_examples=200, deadline=None)
def test_broken_bytes_lose_no_whole_character_and_show_once(ids, data):
    shown = "".join(deltas(BYTE_LEVEL, in_groups(data.draw, ids)))
    want = BYTE_LEVEL.decode(ids)
    assert re.sub(f"{BROKEN}+", BROKEN, shown) == re.sub(f"{BROKEN}+", BROKEN, want)
    if all(i < 256 for i in ids):
        assert shown == want, "token by token the count of U+FFFD is decode's as well"


@given(st.lists(st.sampled_from([*b"aE", 0xE4, 0xB8, 0xAD, 0xC3, 0xA9, 0xF0, 0x9F, 0x91, 0x8D, 0xFF]), max_size=24))
@settings(max_examples=200, deadline=None)
def test_byte_fallback_keeps_the_whole_characters_of_a_broken_run(ids):
    shown = "".join(deltas(FALLBACK, [[i] for i in ids]))
    want = bytes(ids).decode(errors="replace")
    assert re.sub(f"{BROKEN}+", BROKEN, shown) == re.sub(f"{BROKEN}+", BROKEN, want)


def test_d06_split_emoji_hangul_and_combining_marks_never_show_replacement_characters():
    text = "삼겹살 👍🏽 é e\u0301 \u2066中\u2069"
    shown = deltas(BYTE_LEVEL, [[b] for b in text.encode()])
    assert "".join(shown) == text
    assert [delta for delta in shown if delta] == list(text)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, FALLBACK], ids=["byte-level", "byte-fallback"])
def test_d08_a_flush_in_mid_character_neither_raises_nor_spoils_what_is_whole(tokenizer):
    space_x = tokenizer.id_of("▁x") or 0x20
    broken = deltas(tokenizer, [[0xE4], [0xB8], [space_x]])
    assert broken[:2] == ["", ""], "nothing is shown while the character may still be completed"
    assert re.fullmatch(f"{BROKEN}+ x?", "".join(broken))
    assert "".join(deltas(tokenizer, [[0xE4], [0xB8], [0xAD], [space_x]])).startswith("中 ")
    assert deltas(tokenizer, [[0xE4], [0xB8]])[2].strip(BROKEN) == ""
    detokenizer = Detokenizer(tokenizer, [], True)
    assert [detokenizer.push([0xC3]), detokenizer.flush(), detokenizer.flush()] == ["", BROKEN, ""]


def test_d08_broken_bytes_of_a_byte_level_vocabulary_give_one_replacement_character():
    assert deltas(BYTE_LEVEL, [[0xE4], [0xB8], list(b" x")]) == ["", "", f"{BROKEN} x", ""]


def test_d08_bytes_of_one_character_split_by_a_piece_that_begins_with_a_space():
    piece = 256 + SPANNING.index(b" \xe4\xb8")
    assert deltas(BYTE_LEVEL, [[piece], [0xAD]]) == ["", " 中", ""]


def test_d09_byte_pieces_become_characters_and_typed_markers_stay_text():
    assert deltas(FALLBACK, [[b] for b in "한".encode()]) == ["", "", "한", ""]
    assert deltas(FALLBACK, [[0xED]]) == ["", BROKEN]
    typed = [FALLBACK.id_of(c) for c in "<0xED>"]
    assert "".join(deltas(FALLBACK, [typed])) == "<0xED>"


@pytest.mark.parametrize("pieces", [["▁", "▁in", "▁x"], ["▁in", "▁x"], ["▁▁", "▁", "▁", "▁", "▁x"], ["▁", "a"]])
@pytest.mark.parametrize("prompt", [[], ["a"], ["▁world"], ["▁"], ["a", "</s>"]])
def test_d11_prompt_and_completion_join_to_the_decoding_of_both(pieces, prompt):
    prompt_ids, ids = [FALLBACK.id_of(p) for p in prompt], [FALLBACK.id_of(p) for p in pieces]
    completion = "".join(deltas(FALLBACK, [[i] for i in ids], prompt_ids))
    assert FALLBACK.decode(prompt_ids) + completion == FALLBACK.decode(prompt_ids + ids)


def test_d11_byte_level_keeps_its_leading_space():
    assert "".join(deltas(BYTE_LEVEL, [[256 + SPANNING.index(b" in")]])) == " in"


@pytest.mark.parametrize("skip, text", [(True, "a<tool>b"), (False, "a<s></s><tool>b")])
def test_d12_adjacent_added_tokens_get_no_space_and_special_ones_are_dropped_on_request(skip, text):
    ids = [ord("a"), *(BYTE_LEVEL.id_of(t) for t in ("<s>", "</s>", "<tool>")), ord("b")]
    assert "".join(deltas(BYTE_LEVEL, [[i] for i in ids], skip=skip)) == text == BYTE_LEVEL.decode(ids, skip)


def test_special_tokens_between_the_bytes_of_a_character_do_not_break_it():
    assert deltas(BYTE_LEVEL, [[0xE4], [BYTE_LEVEL.id_of("<s>")], [0xB8], [0xAD]]) == ["", "", "", "中", ""]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, FALLBACK], ids=["byte-level", "byte-fallback"])
@pytest.mark.parametrize("left_over", [b"\xe4", b"\xe4\xb8", b"\xf0\x9f\x91"])
def test_museum_37_a_prompt_that_ends_in_mid_character_leaks_nothing(tokenizer, left_over):
    prompt = [*"secret é".encode(), *left_over]
    for output in (b"a", b"\xb8\xada", b"\xad\xe4\xb8\xad", b"\x8da", "中a".encode()):
        shown = "".join(deltas(tokenizer, [[b] for b in output], prompt))
        assert re.sub(f"{BROKEN}+", BROKEN, shown) == re.sub(f"{BROKEN}+", BROKEN, output.decode(errors="replace"))


@given(st.lists(st.integers(0, 255), max_size=12), byte_level_ids())
@settings(deadline=None)
def test_museum_37_the_text_does_not_depend_on_what_a_prompt_left_unfinished(prompt, output):
    """Any bytes as a prompt: the answer of whole characters is the answer."""
    assert "".join(deltas(BYTE_LEVEL, [[i] for i in output], prompt)) == BYTE_LEVEL.decode(output)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, FALLBACK], ids=["byte-level", "byte-fallback"])
@pytest.mark.parametrize("ids", [[0xFF], [0xE4, 0xB8], [0x80], [ord("a")], "中".encode(), [0xF0, 0x9F, 0x91]], ids=str)
def test_the_cost_of_a_token_does_not_grow_with_the_text(tokenizer, ids):
    tokenizer.num_decoded = 0
    detokenizer = Detokenizer(tokenizer, list(b"prompt"), True)
    for _ in range(500):
        for token in ids:
            detokenizer.push([token])
    assert tokenizer.num_decoded < 40 * 500 * len(ids)


@given(byte_level_ids(st.text(st.sampled_from("aé 中👍"), min_size=BULK, max_size=60)), st.data())
@settings(deadline=None)
def test_many_tokens_at_once_give_the_text_of_one_by_one(ids, data):
    groups = in_groups(data.draw, ids)
    assert "".join(deltas(BYTE_LEVEL, groups)) == "".join(deltas(BYTE_LEVEL, [[i] for i in ids]))


@pytest.mark.model
def test_smollm2_deltas_join_to_the_text_of_many_scripts(smollm2, shared):
    """Its vocabulary splits most non-Latin characters into bytes; strings made to break tokenizers come on top."""
    tokenizer = default_plugins().create("loader", "load_gguf", LoaderNeed(str(smollm2))).tokenizer()
    lines = (shared / "data" / "prompts" / "mgsm_multilingual.jsonl").read_text(encoding="utf-8").split("\n")
    texts = [json.loads(line)["question"] for line in lines[::8] if line]
    texts += json.loads((shared / "data" / "text" / "naughty_strings.json").read_text(encoding="utf-8"))
    prompt = tokenizer.encode("Question:")
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        shown = deltas(tokenizer, [[i] for i in ids], prompt, skip=False)
        assert "Question:" + "".join(shown) == tokenizer.decode([*prompt, *ids], skip_special_tokens=False)
        assert BROKEN in text or not any(BROKEN in delta for delta in shown)
