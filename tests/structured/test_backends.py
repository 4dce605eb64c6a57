"""Each kind of grammar through each library: what its masks allow is exactly what the grammar says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paged_core.structured.spec import GrammarError, GrammarSpec

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y z"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ODD_CHOICES = ['"', "\\", "é😀", "\n", "/", 'a"b', "\x7f", "\x01", "⟦", "%", "{}", "yes", " yes", "(?i)", "^", "-", "]"]
EOS = 256
BOTH = ("xgrammar", "llguidance")
WISHES = {
    "json": (
        json.dumps(SCHEMA),
        ['{"a": 1, "b": "y z"}', '{"a":-5,"b":"x"}'],
        ['{"a": 1}', '{"a": 1, "b": "z"}', "[]"],
    ),
    "json_object": ("true", ['{"z": [1, {"é": null}]}', "{}"], ["[1]", '"a"', "1", "null"]),
    "regex": ("[a-c]{2}|ü+", ["ab", "üü"], ["a", "abc", "x", "xab"]),
    "choice": (json.dumps(ODD_CHOICES), ODD_CHOICES, ["no", "yess", "", "es"]),
    "grammar": ('root ::= "a" root "b" | "c"', ["c", "aacbb"], ["aacb", "ab", ""]),
}
CASES = [(backend, kind) for backend in BOTH for kind in WISHES]


def loaded(backends, backend, kind, text, compact=False):
    """The grammar as the engine gets it: compiled, turned into bytes and loaded."""
    spec = GrammarSpec(backend, kind, text, compact)
    return backends[backend].load(spec, backends[backend].compile(spec))


def allowed(matcher, vocabulary):
    words = np.full(-(-len(vocabulary.tokens) // 32), 0x55555555, dtype=np.int32)
    matcher.fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(vocabulary.tokens)]
    return set(np.nonzero(bits)[0].tolist())


def follow(grammar, vocabulary, text):
    """Whether the masks let `text` be written to its end, by some way of cutting it into tokens."""
    data = text.encode()
    todo = [(grammar.matcher, ())]
    seen = set()
    while todo:
        _, path = todo.pop()
        matcher = grammar.matcher()
        assert all(matcher.accept(token) for token in path)
        done = b"".join(vocabulary.tokens[token] for token in path)
        mask = allowed(matcher, vocabulary)
        assert not mask & {257, 320, 332}, "a control or padding token is allowed"
        if done == data:
            if EOS in mask:
                return matcher.accept(EOS)
            continue
        for token in mask - {EOS}:
            piece = done + vocabulary.tokens[token]
            if data.startswith(piece) and piece not in seen:
                seen.add(piece)
                todo.append((None, (*path, token)))
    return False


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_masks_allow_what_the_grammar_says_and_nothing_else(backends, vocabulary, backend, kind):
    text, good, bad = WISHES[kind]
    grammar = loaded(backends, backend, kind, text)
    assert [one for one in good if not follow(grammar, vocabulary, one)] == []
    assert [one for one in bad if follow(grammar, vocabulary, one)] == []


@pytest.mark.parametrize("backend", BOTH)
def test_compact_json_has_no_blanks(backends, vocabulary, backend):
    grammar = loaded(backends, backend, "json", json.dumps(SCHEMA), compact=True)
    assert follow(grammar, vocabulary, '{"a":1,"b":"y z"}')
    assert not follow(grammar, vocabulary, '{"a": 1,"b":"y z"}')


@pytest.mark.parametrize("backend", BOTH)
def test_blanks_end(backends, vocabulary, backend):
    grammar = loaded(backends, backend, "json", json.dumps(SCHEMA))
    assert follow(grammar, vocabulary, '{"a":' + " " * 16 + '1,"b":"x"}')
    assert not follow(grammar, vocabulary, '{"a":' + " " * 17 + '1,"b":"x"}')


@pytest.mark.parametrize("backend", BOTH)
def test_regular_expressions_mean_the_same_in_both(backends, vocabulary, backend):
    grammar = loaded(backends, backend, "regex", r"^\d\w\s?/\/$|a b|x{2,}")
    assert [one for one in ("1a //", "1_//", "a b", "xxx") if not follow(grammar, vocabulary, one)] == []
    assert [one for one in ("٣a //", "1é //", "x", "1a /") if follow(grammar, vocabulary, one)] == []


@pytest.mark.parametrize("backend", BOTH)
def test_schema_is_open_unless_it_closes_itself(backends, vocabulary, backend):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = loaded(backends, backend, "json", json.dumps(schema), compact=True)
    assert follow(grammar, vocabulary, '{"a":1,"zz":2}')
    closed = loaded(backends, backend, "json", json.dumps(schema | {"additionalProperties": False}), compact=True)
    assert not follow(closed, vocabulary, '{"a":1,"zz":2}')


@pytest.mark.parametrize("backend", BOTH)
def test_forced_tokens_spell_the_only_way_on_and_never_the_end(backends, vocabulary, backend):
    grammar = loaded(backends, backend, "regex", "x(other|orders) and nothing")
    matcher = grammar.matcher()
    assert matcher.accept(ord("x"))
    forced = matcher.forced()
    assert b"o".startswith(b"".join(vocabulary.tokens[token] for token in forced))
    assert matcher.accept(vocabulary.tokens.index(b"o"))
    assert matcher.accept(vocabulary.tokens.index(b"t"))
    assert EOS not in matcher.forced()
    spelled = b"".join(vocabulary.tokens[token] for token in matcher.forced())
    assert b"her and nothing".startswith(spelled)
    assert len(spelled) >= 12
    for token in vocabulary.tokens.index(b"h"), *map(ord, "er and nothing"):
        assert matcher.accept(token)
    assert matcher.forced() == []
    assert EOS in allowed(matcher, vocabulary)


@pytest.mark.parametrize("backend", BOTH)
def test_matchers_do_not_share_their_state(backends, backend):
    grammar = loaded(backends, backend, "regex", "ab|cd")
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(ord("a"))
    assert second.accept(ord("c"))
    assert first.accept(ord("b"))
    assert not second.accept(ord("b"))
    assert second.accept(ord("d")) is (backend == "xgrammar")  # llguidance stays broken, xgrammar stands still


@pytest.mark.parametrize(
    ("backend", "kind", "text"),
    [
        *[(backend, "regex", "(?=a)b") for backend in BOTH],
        *[(backend, "grammar", "root ::= foo") for backend in BOTH],
        *[(backend, "json", '{"$ref": "#"}') for backend in BOTH],
        *[
            (backend, "json", '{"type": "integer", "minimum": 5, "maximum": 3}')
            for backend in ("xgrammar", "llguidance")
        ],
        ("xgrammar", "grammar", "root ::="),
        ("llguidance", "json", '{"uniqueItems": true}'),
        ("llguidance", "json", json.dumps({"enum": [f"value{i}" for i in range(100_000)]})),
    ],
)
def test_what_cannot_be_compiled_gets_one_line_that_is_always_the_same(backends, backend, kind, text):
    said = set()
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            backends[backend].compile(GrammarSpec(backend, kind, text, False))
        said.add(str(caught.value))
    (line,) = said
    assert 5 < len(line) <= 320
    assert "\n" not in line
    assert ".cc:" not in line


def bounded(bound):
    return json.dumps({"type": "integer", "minimum": 0, "maximum": bound})


@pytest.mark.parametrize("bound", [2**31, 2**53, 2**53 + 1, 2**63 - 2])
def test_t05_xgrammar_obeys_bounds_of_64_bits_exactly(backends, vocabulary, bound):
    grammar = loaded(backends, "xgrammar", "json", bounded(bound))
    assert follow(grammar, vocabulary, str(bound))
    assert not follow(grammar, vocabulary, str(bound + 1))


@pytest.mark.parametrize("bound", [2**63, 1e30, 10**30])
def test_t05_larger_bounds_xgrammar_refuses_and_llguidance_never_exceeds(backends, vocabulary, bound):
    with pytest.raises(GrammarError, match="Integer exceeds"):
        loaded(backends, "xgrammar", "json", bounded(bound))
    grammar = loaded(backends, "llguidance", "json", bounded(bound))
    assert follow(grammar, vocabulary, str(2**53))
    assert not follow(grammar, vocabulary, str(int(bound) + 1))
