"""One prompt and conversations, with a stand-in model."""

from __future__ import annotations

import os
import signal

import pytest

from paged_core.errors import RequestError


def no_template(*arguments, **named):
    raise RequestError("this model has no chat template", "messages")


def test_answer_goes_to_stdout_and_the_table_to_stderr(llm, invoke):
    result = invoke("run", "hello")
    assert result.exit_code == 0
    assert result.stdout == "one two three\n"
    assert "KV pool: 256 tokens = 64 blocks of 4" in result.stderr
    for word in ["TTFT", "0.500 s", "tokens/s", "5 of 64", "prefix cache", "tail waste", "ended by: stop"]:
        assert word in result.stderr
    assert llm.closed


def test_tail_waste_counts_slots_behind_the_last_written_token(llm, invoke):
    # prompt "ab": 2 tokens; output 13 tokens, the last of which is never written: 14 of 16 slots.
    result = invoke("run", "--raw", "ab")
    assert "2 of 16 slots (12.5%)" in result.stderr


def test_prompt_goes_through_the_chat_template_by_default(llm, invoke):
    invoke("run", "hello", "--system", "Be brief.")
    assert llm.prompts == ["system: Be brief.\nuser: hello\nassistant: "]


def test_raw_prompt_is_sent_as_it_is(llm, invoke):
    invoke("run", "--raw", "hello")
    assert llm.prompts == ["hello"]


def test_prompt_can_come_from_standard_input(llm, invoke):
    invoke("run", "--raw", "-", stdin="from a pipe")
    assert llm.prompts == ["from a pipe"]


def test_model_without_template_completes_the_bare_text_and_says_so(llm, invoke, monkeypatch):
    monkeypatch.setattr(llm.tokenizer, "apply_chat_template", no_template)
    result = invoke("run", "hello")
    assert llm.prompts == ["hello"]
    assert "no chat template" in result.stderr


@pytest.mark.parametrize("flags", [["--chat"], ["--system", "x"]])
def test_asking_for_a_chat_without_template_is_an_error(llm, invoke, monkeypatch, flags):
    monkeypatch.setattr(llm.tokenizer, "apply_chat_template", no_template)
    result = invoke("run", "hello", *flags)
    assert result.exit_code == 2
    assert "template" in result.stderr.splitlines()[-1]


def test_empty_prompt_is_refused(llm, invoke):
    result = invoke("run", "--raw", "")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "paged-core: the prompt is empty"


def test_several_answers_are_printed_one_after_the_other(llm, invoke):
    result = invoke("run", "hello", "--n", "2", "--temperature", "1")
    assert result.stdout == "--- 1 of 2\none two three\n--- 2 of 2\none two three\n"


def test_ctrl_c_stops_between_steps_with_130(llm, invoke):
    llm.while_streaming = lambda i: os.kill(os.getpid(), signal.SIGINT) if i == 1 else None
    before = signal.getsignal(signal.SIGINT)
    result = invoke("run", "hello")
    assert result.exit_code == 130
    assert result.stdout == "one two \n"
    assert llm.closed
    assert signal.getsignal(signal.SIGINT) is before


def test_only_given_flags_reach_the_engine(llm, invoke):
    invoke("run", "hello")
    assert llm.settings == {}
    invoke(
        "run",
        "hello",
        "--attn=torch",
        "--no-prefix-cache",
        "--kv-memory=2GiB",
        "--block-size=1",
        "--plugin=a",
        "--plugin=b",
    )
    assert llm.settings == {
        "attn": "torch",
        "prefix_cache": False,
        "kv_memory": "2GiB",
        "block_size": 1,
        "plugin_modules": ("a", "b"),
    }


def test_sampling_flags_become_sampling_params(llm, invoke, monkeypatch):
    seen = []
    stream = llm.stream
    monkeypatch.setattr(llm, "stream", lambda prompt, params: seen.append(params) or stream(prompt, params))
    invoke("run", "x")
    invoke(
        "run",
        "x",
        "--temperature=0.5",
        "--top-k=5",
        "--seed=7",
        "--stop=A",
        "--stop=B",
        "--ignore-eos",
        "--max-tokens=9",
    )
    assert (seen[0].temperature, seen[0].max_tokens, seen[0].ignore_eos, seen[0].stop) == (0, 512, False, [])
    assert (seen[1].temperature, seen[1].top_k, seen[1].seed, seen[1].stop) == (0.5, 5, 7, ["A", "B"])
    assert (seen[1].ignore_eos, seen[1].max_tokens) == (True, 9)
    invoke("run", "x", "--beam-width=3", "--n=2", "--length-penalty=0.5")
    assert (seen[2].use_beam_search, seen[2].beam_width, seen[2].n, seen[2].length_penalty) == (True, 3, 2, 0.5)
    assert not seen[1].use_beam_search


def test_timing_and_stats_on_request(llm, invoke):
    plain = invoke("run", "hello").stderr
    assert "start-up:" not in plain
    assert "engine:" not in plain
    text = invoke("run", "hello", "--timing", "--stats").stderr
    for word in ["python and command line", "plugins", "0.250 s", "first token", "process start to first token"]:
        assert word in text
    for line in [
        "answers           3 stop",
        "tokens            40 of prompts, 50 generated, 60 computed",
        "speed             25.0 tokens/s generated, in 7 steps of 2.00 s together",
        "TTFT              250.0 ms median, 500.0 ms at the 95th percentile",
        "TPOT              unknown",
        "KV blocks         5 of 64 at most (7.8%), 2.5 on average",
        "saved by sharing  37.5% on average, 3 at most (50.0%) of the blocks it would take without",
        "empty slots       6.2% of the sequences' slots, on average",
        "prefix cache      25 of 100 tokens found (25.0%)",
        "copies            1 blocks copied on write, 2 cached ones overwritten",
        "preemptions       1 by recompute",
    ]:
        assert f"  {line}\n" in text


def test_conversation_sends_all_turns(llm, invoke):
    result = invoke("run", stdin="hello\n\nagain\n/quit\nnever\n")
    assert result.exit_code == 0
    assert result.stdout == "one two three\n" * 2
    assert llm.prompts == [
        "user: hello\nassistant: ",
        "user: hello\nassistant: one two three\nuser: again\nassistant: ",
    ]


def test_reset_forgets_all_but_the_system_message(llm, invoke):
    invoke("run", "--system=S", stdin="hello\n/reset\nagain\n")
    assert llm.prompts[1] == "system: S\nuser: again\nassistant: "


def test_unknown_command_in_a_conversation_is_told(llm, invoke):
    result = invoke("run", stdin="/help\n")
    assert "no command /help" in result.stderr
    assert "/reset" in result.stderr
    assert llm.prompts == []


def test_refused_turn_leaves_the_conversation_as_it_was(llm, invoke, monkeypatch):
    stream = llm.stream

    def refuse_long(prompt, params):
        if len(prompt["prompt_token_ids"]) > 100:
            raise RequestError("the prompt is too long", "prompt")
        return stream(prompt, params)

    monkeypatch.setattr(llm, "stream", refuse_long)
    result = invoke("run", stdin="a\n" + "long" * 40 + "\nb\n")
    assert "refused: the prompt is too long" in result.stderr
    assert llm.prompts[-1] == "user: a\nassistant: one two three\nuser: b\nassistant: "


def test_ctrl_c_in_a_conversation_stops_the_answer_only(llm, invoke):
    llm.while_streaming = lambda i: os.kill(os.getpid(), signal.SIGINT) if (i, len(llm.prompts)) == (0, 1) else None
    result = invoke("run", stdin="hello\nagain\n")
    assert result.exit_code == 0
    assert result.stdout == "one \none two three\n"
    assert "(stopped)" in result.stderr
    assert llm.prompts[1] == "user: hello\nassistant: one \nuser: again\nassistant: "
