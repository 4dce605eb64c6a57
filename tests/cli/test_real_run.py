"""The command with the real engine: a tiny random checkpoint, or, marked `model`, the default model."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from paged_core.testing.tiny import write_tiny_llama

COMMAND = [sys.executable, "-c", "from paged_core.cli import main; main()"]
TINY = ["--num-blocks=64", "--max-num-seqs=4", "--max-model-len=96", "--dtype=float32"]
PATIENCE_S = 120  # until the first record of a process that has to import torch on a busy machine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("flags", [["--attn=torch", "--preempt=swap", "--block-size=1"], ["--preempt=recompute"]])
def test_streams_the_text_that_generate_returns(tiny, invoke, flags):
    from paged_core import LLM, SamplingParams

    result = invoke("run", "hello", "--raw", f"--model={tiny}", "--max-tokens=12", "--audit", *TINY, *flags)
    assert result.exit_code == 0, result.stderr
    settings = {"num_blocks": 64, "max_num_seqs": 4, "max_model_len": 96, "dtype": "float32"}
    with LLM(str(tiny), **settings) as llm:
        (expected,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert result.stdout == expected.outputs[0].text + "\n"
    assert (
        f"{len(expected.outputs[0].token_ids)} tokens, ended by: {expected.outputs[0].finish_reason}" in result.stderr
    )


EBNF = 'root ::= number (" + " number)+ " = " number\nnumber ::= [1-9] [0-9]?\n'
LARK = 'start: day ", " /[1-9]/ " " MONTH\nday: "Monday" | "Tuesday"\nMONTH: "May" | "June"\n'


@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        (EBNF, r"[1-9][0-9]?( \+ [1-9][0-9]?)+ = [1-9][0-9]?\n"),
        (LARK, r"(Monday|Tuesday), [1-9] (May|June)\n"),
    ],
)
def test_a_grammar_of_either_dialect_is_followed(tiny, invoke, tmp_path, grammar, sentence):
    (tmp_path / "grammar").write_text(grammar)
    flags = ["--grammar", str(tmp_path / "grammar"), "--seed=3", "--temperature=1"]
    result = invoke("run", "hello", f"--model={tiny}", "--max-tokens=80", *flags, *TINY)
    assert result.exit_code == 0, result.stderr
    assert re.fullmatch(sentence, result.stdout)


def test_a_grammar_that_is_none_says_why_and_prints_nothing(tiny, invoke, tmp_path):
    (tmp_path / "grammar").write_text("root ::= missing")
    result = invoke("run", "hello", f"--model={tiny}", "--grammar", str(tmp_path / "grammar"), *TINY)
    assert result.exit_code == 2
    assert result.stdout.strip() == ""
    assert '"missing" is not defined' in result.stderr


def test_conversation_hits_the_prefix_cache(tiny, invoke):
    result = invoke("run", f"--model={tiny}", "--max-tokens=8", "--stats", *TINY, stdin="hello there\nand again\n")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "prefix cache" in line and "found" in line]
    assert int(line.split()[2]) >= 16


def test_inspect_counts_what_is_there(tiny, invoke):
    import torch
    from safetensors.torch import load_file

    result = invoke("inspect", tiny, "--num-blocks=64", "--dtype=float32")
    assert result.exit_code == 0, result.stderr
    facts = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    facts = {name: value.strip() for name, value in facts.items()}
    tensors = load_file(str(tiny / "model.safetensors")).values()
    assert facts["parameters"] == f"{sum(torch.numel(tensor) for tensor in tensors):,}"
    assert facts["ranks"] == "1, 2, 4 can share it (--tensor-parallel-size)"
    assert facts["KV per token"] == "512 bytes (float32)"  # 2 x 2 layers x 2 heads x 16 x 4 bytes
    assert facts["KV pool here"].startswith("64 blocks of 16 = 1,024 tokens")
    assert facts["linear layers"].split()[0] in ("onednn", "torch")
    assert facts["chat template"] == "yes"


def test_backend_that_is_not_here_says_what_is(tiny, invoke):
    result = invoke("run", "hello", f"--model={tiny}", "--attn=attn_cuda", *TINY)
    assert result.exit_code == 2
    assert "attn_cuda" in result.stderr
    assert "attn_torch" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("flag", ["--attn=attn_tosch", "--sched=nonsense", "--model=/nowhere/model.gguf"])
def test_unknown_names_exit_with_2(tiny, invoke, flag):
    result = invoke("run", "hello", f"--model={tiny}", flag, *TINY)
    assert result.exit_code == 2
    assert flag.partition("=")[2] in result.stderr


@pytest.mark.slow
def test_killed_batch_goes_on_and_answers_every_line_once(tiny, tmp_path):
    prompts = {f"id-{i}": f"question number {i}" for i in range(120)}
    source, target, whole = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    source.write_text("".join(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in prompts.items()))
    start = [*COMMAND, "run", f"--model={tiny}", "--input", str(source), "--max-tokens=40", "--ignore-eos", *TINY]

    victim = subprocess.Popen([*start, "--output", str(target)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not (target.exists() and target.read_bytes().count(b"\n") >= 5):
        assert victim.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    survived = target.read_bytes()
    assert 5 <= survived.count(b"\n") < len(prompts)

    subprocess.run([*start, "--output", str(target)], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*start, "--output", str(whole)], check=True, stderr=subprocess.DEVNULL)
    assert target.read_bytes().startswith(survived[: survived.rindex(b"\n") + 1])
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(record["id"] for record in records) == sorted(prompts)
    expected = {record["id"]: record["outputs"] for record in map(json.loads, whole.read_text().splitlines())}
    assert {record["id"]: record["outputs"] for record in records} == expected


@pytest.mark.slow
@pytest.mark.model
def test_default_model_answers_the_same_under_different_plugins(smollm2, invoke):
    flags = ["--dtype=float32", "--max-tokens=24", "--num-blocks=4096"]
    texts = set()
    for more in (["--attn=attn_torch", "--preempt=swap", "--block-size=1"], ["--attn=attn_cpu", "--preempt=recompute"]):
        result = invoke("run", "What is the capital of France?", *flags, *more)
        assert result.exit_code == 0, result.stderr
        texts.add(result.stdout)
    assert len(texts) == 1
    assert "Paris" in texts.pop()
