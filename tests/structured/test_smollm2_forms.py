"""Forms on the default model: its 49,152 tokens, and as many grammars at once as a batch has requests."""

from __future__ import annotations

import json

import pytest

from paged_core import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.model]

VALUES = [  # a schema, and whether a value obeys it
    ({"type": "integer", "minimum": 0, "maximum": 99}, lambda value: type(value) is int and 0 <= value <= 99),
    ({"enum": ["red", "green", "blue"]}, lambda value: value in ("red", "green", "blue")),
    ({"type": "boolean"}, lambda value: type(value) is bool),
    ({"type": "string", "maxLength": 12}, lambda value: isinstance(value, str) and len(value) <= 12),
    (
        {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 1, "maxItems": 3},
        lambda value: 1 <= len(value) <= 3 and set(value) <= {1, 2, 3},
    ),
    ({"type": "null"}, lambda value: value is None),
    ({"const": "fixed"}, lambda value: value == "fixed"),
    ({"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"}, lambda value: value[:1].isupper() and value[1:].islower()),
]


def schema(i):
    """The i-th of 32 that all differ, and what judges each property."""
    judges = {f"name_{i}": VALUES[3], f"a{i}": VALUES[i % 8], f"b{i}": VALUES[(i // 8 + i + 1) % 8]}
    properties = {name: value for name, (value, _) in judges.items()}
    closed = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return closed, {name: judge for name, (_, judge) in judges.items()}


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_32_schemas_at_once_are_all_obeyed(smollm2, backend):
    forms = [schema(i) for i in range(32)]
    wishes = [{"json": form, "backend": backend, "disable_any_whitespace": True} for form, _ in forms]
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=160, structured_outputs=wish)
        for i, wish in enumerate(wishes)
    ]
    shape = {"max_num_seqs": 32, "max_model_len": 512, "num_blocks": 1024, "threads": 1, "structured_timeout": 60.0}
    with LLM("smollm2-135m", audit=True, **shape) as llm:
        prompts = [f"Describe item {i} as JSON: " for i in range(32)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        llm.engine.check()
        assert llm.engine._compiling._opened().num_cached == 32
    assert [(output.error, output.outputs[0].finish_reason) for output in outputs] == [(None, "stop")] * 32
    for output, (_, judges) in zip(outputs, forms, strict=True):
        found = json.loads(output.outputs[0].text)
        assert list(found) == list(judges)
        assert [name for name, judge in judges.items() if not judge(found[name])] == [], output.outputs[0].text
