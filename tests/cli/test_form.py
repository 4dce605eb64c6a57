"""The flags that prescribe the form of the answer, down to SamplingParams."""

from __future__ import annotations

import json

import pytest

from paged_core.api.output import CompletionOutput, RequestMetrics, RequestOutput

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def wish(llm, invoke, monkeypatch):
    """Run with these flags; what reached the engine, as (kind, text)."""
    seen = []
    stream = llm.stream
    monkeypatch.setattr(llm, "stream", lambda prompt, params: seen.append(params) or stream(prompt, params))

    def run(*flags):
        result = invoke("run", "x", *flags)
        assert result.exit_code == 0, result.stderr
        found = seen[-1].structured_outputs
        return None if found is None else (found.kind, found.text)

    return run


def test_each_flag_becomes_its_kind(wish, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.ebnf"
    schema.write_text(json.dumps(SCHEMA, indent=2))
    grammar.write_text('root ::= "é"', encoding="utf-8")
    assert wish() is None
    assert wish("--json-schema", json.dumps(SCHEMA)) == ("json", json.dumps(SCHEMA))
    assert wish("--json-schema", str(schema)) == ("json", json.dumps(SCHEMA))
    assert wish("--json-object") == ("json_object", "true")
    assert wish("--regex", "[0-9]+") == ("regex", "[0-9]+")
    assert wish("--choice", "yes", "--choice", "no") == ("choice", '["yes", "no"]')
    assert wish("--grammar", str(grammar)) == ("grammar", 'root ::= "é"')


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--regex", "a", "--choice", "b"], "give one of --regex, --choice"),
        (["--json-schema", "nowhere.json"], "--json-schema nowhere.json: No such file"),
        (["--grammar", "nowhere.ebnf"], "--grammar nowhere.ebnf: No such file"),
        (["--json-schema", "{"], "json is not JSON"),
        (["--regex", "("], "never closed"),
        (["--regex", "a", "--ignore-eos"], "ignore_eos forbids the end"),
    ],
)
def test_nonsense_is_refused_before_a_model_is_loaded(llm, invoke, monkeypatch, flags, said):
    monkeypatch.setattr("paged_core.cli.run.open_llm", lambda settings: pytest.fail("a model was opened"))
    result = invoke("run", "x", *flags)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_form_that_cannot_be_compiled_is_told_and_is_no_success(llm, invoke, monkeypatch):
    branch = CompletionOutput(0, "", [], finish_reason="error")
    said, metrics = "the regex cannot be compiled: look-around", RequestMetrics(10.0, finished_time=11.0)
    last = RequestOutput("r", "x", [1], [branch], finished=True, error=said, metrics=metrics)
    monkeypatch.setattr(llm, "stream", lambda prompt, params: (one for one in [last]))
    result = invoke("run", "x", "--regex", "(?=a)b")
    assert result.exit_code == 2
    assert "note: the regex cannot be compiled" in result.stderr


def test_a_file_that_is_no_text_is_refused(invoke, llm, tmp_path):
    (tmp_path / "grammar").write_bytes(b"\xff\xfe")
    result = invoke("run", "x", "--grammar", str(tmp_path / "grammar"))
    assert result.exit_code == 2
    assert "grammar: 'utf-8' codec" in result.stderr


def test_a_line_of_a_batch_has_its_own_form(llm, invoke, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"prompt": "a", "structured_outputs": {"choice": ["q"]}},
        {"prompt": "b"},
        {"prompt": "c", "structured_outputs": {"regex": "("}},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = {}
    add = llm.engine.add_request

    def note(request_id, prompt, params, **more):
        seen[prompt] = params.structured_outputs.text
        add(request_id, prompt, params, **more)

    llm.engine.add_request = note
    result = invoke("run", "--input", str(source), "--output", str(target), "--regex", "z")
    assert seen == {"a": '["q"]', "b": "z"}
    assert result.exit_code == 2
    errors = [json.loads(line).get("error", "") for line in target.read_text().splitlines()]
    assert [error for error in errors if error] == [error for error in errors if "never closed" in error] != []
