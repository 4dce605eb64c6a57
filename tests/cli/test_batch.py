"""A file of prompts: every line answered exactly once, whatever happens to the process or to its neighbours."""

from __future__ import annotations

import json
import os
import signal

import pytest


@pytest.fixture
def source(tmp_path):
    return tmp_path / "in.jsonl"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def batch(llm, invoke, source, target):
    """Run the command over the two files."""
    return lambda *flags: invoke("run", "--input", source, "--output", target, *flags)


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_key(path):
    records = read(path)
    table = {record.get("id", record.get("line")): record for record in records}
    assert len(table) == len(records), "a record occurs twice"
    return table


def test_every_kind_of_line_is_answered_under_its_key(batch, source, target):
    write(
        source,
        {"prompt": "by line"},
        {"id": "a", "prompt": "by id"},
        {"id": 7, "messages": [{"role": "user", "content": "hi"}]},
        {"prompt_token_ids": [104, 105]},
    )
    assert batch().exit_code == 0
    texts = {key: record["outputs"][0]["text"] for key, record in by_key(target).items()}
    assert texts == {1: "BY LINE", "a": "BY ID", 7: "USER: HI\nASSISTANT: ", 4: "HI"}


def test_a_record_says_how_it_ended_and_what_it_used(batch, source, target):
    write(source, {"prompt": "abc"})
    batch()
    assert read(target) == [
        {
            "line": 1,
            "outputs": [{"text": "ABC", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "cached_tokens": 0},
        }
    ]


def test_line_overrides_the_command_lines_sampling(batch, source, target):
    write(
        source, {"prompt": "abcdef"}, {"prompt": "abcdef", "max_tokens": 2}, {"prompt": "ab", "n": 2, "temperature": 1}
    )
    batch("--max-tokens=4")
    outputs = {key: [one["text"] for one in record["outputs"]] for key, record in by_key(target).items()}
    assert outputs == {1: ["ABCD"], 2: ["AB"], 3: ["AB", "AB"]}


def test_bare_prompts_stay_bare_unless_chat_is_asked_for(batch, source, target, tmp_path):
    write(source, {"prompt": "hi"})
    batch()
    assert read(target)[0]["outputs"][0]["text"] == "HI"
    target.unlink()
    batch("--chat", "--system=S")
    assert read(target)[0]["outputs"][0]["text"] == "SYSTEM: S\nUSER: HI\nASSISTANT: "


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "not JSON"),
        ('"text"', "not a JSON object"),
        ("[" * 100_000, "not JSON"),
        ("{}", "a line needs one of"),
        ({"prompt": "x", "messages": []}, "prompt and messages"),
        ({"prompt": 5}, "prompt must be text"),
        ({"messages": "hi"}, "messages must be a list"),
        ({"messages": [{"role": "martian", "content": "hi"}]}, "martian"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "x", "temprature": 1}, "did you mean temperature?"),
        ({"prompt": "x", "temperature": -1}, "temperature must lie in"),
        ({"prompt": "x", "stop": 5}, "stop has the wrong type"),
        ({"prompt": "x", "thinking_token_budget": 5}, "thinking_token_budget is not supported: there is no reasoning"),
        ({"prompt": "x", "bad_words_token_ids": [[1]]}, "no such field"),
        ({"id": True, "prompt": "x"}, "id must be text or an integer"),
        ({"prompt": "impossible"}, "it cannot be"),
    ],
)
def test_a_bad_line_gets_an_error_record_and_harms_no_neighbour(batch, source, target, line, reason):
    write(source, {"prompt": "before"}, line, {"prompt": "after"})
    result = batch()
    records = by_key(target)
    assert result.exit_code == 2
    assert 'look for "error"' in result.stderr
    assert reason in records[2]["error"]
    assert records[1]["outputs"][0]["text"] == "BEFORE"
    assert records[3]["outputs"][0]["text"] == "AFTER"


def test_a_line_that_is_not_utf8_is_bad(batch, source, target):
    source.write_bytes(b'{"prompt": "\xff"}\n{"prompt": "good"}\n')
    assert batch().exit_code == 2
    assert "not JSON" in by_key(target)[1]["error"]


def test_a_repeated_id_is_an_error_under_its_line(batch, source, target):
    write(source, {"id": "a", "prompt": "first"}, {"id": "a", "prompt": "second"})
    assert batch().exit_code == 2
    records = by_key(target)
    assert records["a"]["outputs"][0]["text"] == "FIRST"
    assert records[2]["error"] == "id 'a' is already used on line 1"


def test_an_id_that_looks_like_a_line_number_is_not_one(batch, source, target):
    write(source, {"prompt": "line one"}, {"id": 1, "prompt": "id one"})
    assert batch().exit_code == 0
    assert {("id" in record, record["outputs"][0]["text"]) for record in read(target)} == {
        (False, "LINE ONE"),
        (True, "ID ONE"),
    }


def test_blank_lines_are_left_out_but_counted(batch, source, target):
    write(source, "", {"prompt": "two"}, "   ", {"prompt": "four"})
    batch()
    assert set(by_key(target)) == {2, 4}


def test_engine_is_fed_no_more_than_it_can_queue(batch, llm, source, target):
    write(source, *({"prompt": f"p{i}"} for i in range(50)))
    batch()
    assert llm.engine.most_open == 4  # twice max_num_seqs
    assert len(by_key(target)) == 50


def test_finished_lines_are_not_computed_again(batch, llm, source, target):
    write(source, *({"prompt": f"p{i}"} for i in range(5)))
    batch()
    before = target.read_bytes()
    assert llm.engine.num_answered == 5
    result = batch()
    assert result.exit_code == 0
    assert llm.engine.num_answered == 5
    assert target.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 5, 9, 30])
def test_a_torn_last_line_is_cut_off_and_computed_again(batch, llm, source, target, cut):
    write(source, *({"id": f"i{i}", "prompt": f"p{i}"} for i in range(4)))
    batch()
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(lines[:2]) + lines[2][:cut])
    assert batch().exit_code == 0
    assert llm.engine.num_answered == 4 + 2
    assert set(by_key(target)) == {"i0", "i1", "i2", "i3"}


def test_errors_of_an_earlier_run_still_count(batch, source, target):
    write(source, {"prompt": "good"}, {"prompt": 5})
    assert batch().exit_code == 2
    assert batch().exit_code == 2


@pytest.mark.parametrize("content", ["precious notes\n", "precious notes, no newline", '{"name": 1}\n', '{"idx": 1'])
def test_a_file_of_somebody_else_is_left_alone(batch, llm, source, target, content):
    write(source, {"prompt": "x"})
    target.write_text(content)
    result = batch()
    assert result.exit_code == 2
    assert "was not written by a run of this command" in result.stderr
    assert target.read_text() == content
    assert llm.engine.num_answered == 0


def test_two_runs_cannot_write_the_same_file(batch, source, target):
    from paged_core.cli.records import Records

    write(source, {"prompt": "x"})
    with Records(target):
        result = batch()
    assert result.exit_code == 2
    assert "another run" in result.stderr


def test_input_and_output_must_differ_and_exist(invoke, llm, source, target):
    write(source, {"prompt": "x"})
    assert "same file" in invoke("run", "--input", source, "--output", source).stderr
    assert "no such file" in invoke("run", "--input", target, "--output", source).stderr
    assert "not both" in invoke("run", "hello", "--input", source, "--output", target).stderr
    assert read(source) == [{"prompt": "x"}]


def test_ctrl_c_keeps_what_is_finished_and_aborts_the_rest(batch, llm, source, target):
    write(source, *({"prompt": f"p{i}"} for i in range(10)))
    calls = iter(range(1, 100))
    llm.engine.before_step = lambda: os.kill(os.getpid(), signal.SIGINT) if next(calls) == 3 else None
    result = batch()
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    assert len(by_key(target)) == 3
    assert len(llm.engine.aborted) == 3  # four were queued, one finished and its place not yet filled
    llm.engine.before_step = lambda: None
    assert batch().exit_code == 0
    assert len(by_key(target)) == 10


def test_text_of_any_script_survives(batch, source, target):
    source.write_text('{"id": "\\u2028é", "prompt": "ünï\\u2028code"}\n', encoding="utf-8")
    batch()
    (line,) = target.read_bytes().decode("utf-8").strip("\n").split("\n")
    record = json.loads(line)
    assert (record["id"], record["outputs"][0]["text"]) == ("\u2028é", "ÜNÏ\u2028CODE")
