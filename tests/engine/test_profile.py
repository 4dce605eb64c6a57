"""`profile`: a Chrome trace of every step, and nothing in the way when it is off."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from paged_core import LLM, SamplingParams
from paged_core.api.batch import StepPlan
from paged_core.errors import ConfigError, EngineDeadError
from paged_core.testing.tiny import write_tiny_llama
from paged_core.tracing import Trace

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


def test_every_part_of_every_step_is_in_the_file(tiny, tmp_path):
    path = tmp_path / "trace.json"
    with LLM(str(tiny), dtype="float32", num_blocks=64, profile=str(path)) as llm:
        profiled = llm.generate([[1, 2, 3]], PARAMS, use_tqdm=False)
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(tracks.values()) == ["engine", "executor"]
    counts = Counter((tracks[event["tid"]], event["name"]) for event in events if event["ph"] == "X")
    for name in ("step", "schedule", "apply", "submit", "commit", "emit and detokenise"):
        assert counts["engine", name] == 4, name
    assert counts["executor", "forward"] == counts["executor", "head"] == counts["executor", "sample"] == 4
    for name in ("qkv", "attention", "o", "gate_up", "activation", "down"):
        assert counts["executor", name] == 4 * 2, f"{name}: once a layer and step"
    steps = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("name") == "step")
    for event in events:
        if event.get("name") == "attention":
            assert any(begin <= event["ts"] and event["ts"] + event["dur"] <= end for begin, end in steps)
    with LLM(str(tiny), dtype="float32", num_blocks=64) as llm:
        plain = llm.generate([[1, 2, 3]], PARAMS, use_tqdm=False)
    assert plain[0].outputs[0].token_ids == profiled[0].outputs[0].token_ids


def test_a_file_that_cannot_be_written_is_said_before_any_work(tiny, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr("paged_exec_local.local.LocalExecutor.close", lambda executor: closed.append(executor))
    with pytest.raises(ConfigError, match="the profile cannot be written to"):
        LLM(str(tiny), num_blocks=64, profile=str(tmp_path / "nowhere" / "trace.json"))
    assert len(closed) == 1


def test_the_model_is_released_when_its_profile_cannot_be_written_in_the_end(tiny, tmp_path):
    path = tmp_path / "trace.json"
    llm = LLM(str(tiny), num_blocks=64, profile=str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=r"trace\.json"):
        llm.close()
    with pytest.raises(EngineDeadError):
        llm.engine._executor.submit(StepPlan.empty())


def test_a_failed_call_is_a_span_too():
    trace = Trace()

    def fails():
        raise ValueError("as it should")

    with pytest.raises(ValueError, match="as it should"):
        trace.timed(fails, "failing")()
    (span,) = trace.take()
    assert span.name == "failing"
    assert span.duration >= 0
    assert len(trace) == 0
