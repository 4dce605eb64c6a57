"""No hook is called while a request is in flight, and a decode step allocates few Python objects."""

from __future__ import annotations

import sys

import pytest
from pluggy._hooks import HookCaller

from paged_core import LLM, SamplingParams
from paged_core.api.provider import KINDS, Provider
from paged_core.testing.tiny import write_tiny_llama


@pytest.fixture()
def llm(tmp_path):
    with LLM(str(write_tiny_llama(tmp_path / "tiny")), num_blocks=256, attn="attn_torch") as made:
        yield made


def test_zero_hook_and_provider_calls_over_50_steps(llm, monkeypatch):
    calls = []
    monkeypatch.setattr(HookCaller, "__call__", lambda self, **kwargs: calls.append(self.name))
    hooks = {info.hook for info in KINDS.values()} | {"paged_cli", "paged_choose", "paged_shutdown"}
    providers = {
        function.__code__
        for record in llm._assembly.plugins.records.values()
        for function in (type(record.provider).probe, type(record.provider).create, Provider.missing_capabilities)
    }

    def watch(frame, event, argument):
        if event == "call" and (frame.f_code.co_name in hooks or frame.f_code in providers):
            calls.append(frame.f_code.co_name)

    for i in range(4):
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        llm.engine.add_request(str(i), "the other one " * (i + 1), params)
    sys.setprofile(watch)
    try:
        for _ in range(50):
            llm.engine.step()
    finally:
        sys.setprofile(None)
    assert llm.engine.stats().num_steps == 50
    assert calls == []


def test_the_watch_itself_sees_a_hook_call(llm, monkeypatch):
    """The check above can fail: the same patch notices a call through the manager."""
    calls = []
    monkeypatch.setattr(HookCaller, "__call__", lambda self, **kwargs: calls.append(self.name))
    llm._assembly.plugins._manager.hook.paged_shutdown()
    assert calls == ["paged_shutdown"]
