"""The grammars of calls, followed byte by byte by the library that enforces them."""

from __future__ import annotations

import pytest

from paged_core.server.tools.declared import NO_PARAMETERS, Tool
from paged_core.server.tools.formats import HERMES, LLAMA3_JSON
from paged_core.server.tools.grammar import answer_grammar, call_grammar, closed
from paged_core.structured.llguidance_backend import LLGuidance
from paged_core.structured.spec import GrammarSpec
from paged_core.structured.vocabulary import vocabulary_of
from paged_core.testing.tokenizer import ByteTokenizer

EOS = 256
SCHEMA = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/n"}, "s": {"description": "::= // start:", "type": "string"}},
    "required": ["x"],
    "$defs": {"n": {"type": "integer"}},
    "x-guidance": {"lenient": True},
}
TOOLS = [Tool("f", SCHEMA, strict=True), Tool("ns/g.h", NO_PARAMETERS)]
F = '{"name": "f", "%s": {"x": 1, "s": "\u00e9\\n"}}'
G = '{"name": "ns/g.h", "%s": {}}'


@pytest.fixture(scope="module")
def accepts():
    """Whether a text is a sentence of a grammar."""
    backend = LLGuidance(vocabulary_of(ByteTokenizer(), 320))

    def check(fields, text):
        assert fields["backend"] == "llguidance"
        spec = GrammarSpec("llguidance", "grammar", fields["grammar"], compact=False)
        backend.compile(spec)
        matcher = backend.load(spec, b"").matcher()
        return all(matcher.accept(token) for token in [*text.encode(), EOS])

    return check


def hermes(*calls):
    return "\n".join(f"<tool_call>\n{call % 'arguments'}\n</tool_call>" for call in calls)


def llama(*calls):
    return "; ".join(call % "parameters" for call in calls)


@pytest.mark.parametrize(("form", "write"), [(HERMES, hermes), (LLAMA3_JSON, llama)])
def test_forced_answers_are_calls_and_nothing_else(accepts, form, write):
    many, one = call_grammar(form, TOOLS, None), call_grammar(form, TOOLS, 1)
    for text in (write(F), write(G)):
        assert accepts(many, text)
        assert accepts(one, text)
    assert accepts(many, write(F, G, F))
    assert not accepts(one, write(F, G))
    assert not accepts(many, write(*[G] * 33))
    wrong = ["", "hi", "hi " + write(F), write(F) + " hi", write(F).replace("1", "1.5"), write(F).replace('"f"', '"e"')]
    wrong += [write(F).replace('"x": 1, ', ""), write(F).replace('"x"', '"y"'), write(G).replace("{}", '{"a": 1}')]
    for text in wrong:
        assert not accepts(many, text), text


def test_a_named_tool_leaves_no_other(accepts):
    grammar = call_grammar(HERMES, TOOLS[:1], 1)
    assert accepts(grammar, hermes(F))
    assert not accepts(grammar, hermes(G))


@pytest.mark.parametrize(("form", "write"), [(HERMES, hermes), (LLAMA3_JSON, llama)])
def test_strict_tools_leave_text_free_and_calls_not(accepts, form, write):
    grammar = answer_grammar(form, TOOLS)
    for text in ("", "hi", "\n a {b} <tool", write(F), write(F, G), write(G).replace("{}", '{"a": [1]}')):
        assert accepts(grammar, text), text
    for text in (write(F).replace("1", '"1"'), write(F).replace('"f"', '"e"'), write(F)[:-9]):
        assert not accepts(grammar, text), text
    if form is HERMES:
        assert accepts(grammar, "Hm.\n" + hermes(F) + "\nSo.")
    for text in {HERMES: ["<tool_call>x"], LLAMA3_JSON: ['\n{"a": 1}', "x <|python_tag|>{}"]}[form]:
        assert not accepts(grammar, text), text


def test_objects_are_closed_unless_they_speak_of_other_properties():
    assert closed(SCHEMA)["additionalProperties"] is False
    assert closed({"properties": {}}) == {"type": "object", "properties": {}, "additionalProperties": False}
    for more in ({"additionalProperties": True}, {"allOf": []}, {"$ref": "#/$defs/n"}, {"required": ["y"]}):
        assert closed({**SCHEMA, **more}) == {**SCHEMA, **more}
    assert closed({}) == {"type": "object"}
