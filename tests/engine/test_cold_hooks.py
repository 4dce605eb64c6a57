"""No hook is called while a request is in flight, and a decode step allocates few Python objects."""

from __future__ import annotations

import sys

import pytest

from paged_core import LLM, SamplingParams
from paged_core.api.provider import KINDS, Provider
from paged_core.testing.tiny import write_tiny_llama


@pytest.fixture
def llm(tmp_path):
    with LLM(str(write_tiny_llama(tmp_path / "tiny")), num_blocks=256, attn="attn_torch") as made:
        yield made


class HookCalls:
    """Names of hooks called through the registry's manager, or of whose implementations were called directly."""

    def __init__(self, plugins):
        self.names = []
        self._undo = plugins._manager.add_hookcall_monitoring(self._before, lambda *ignored: None)
        self._hooks = {info.hook for info in KINDS.values()} | {"paged_cli", "paged_choose", "paged_shutdown"}
        self._providers = {
            function.__code__
            for record in plugins.records.values()
            for function in (type(record.provider).probe, type(record.provider).create, Provider.missing_capabilities)
        }

    def _before(self, name, implementations, arguments):
        self.names.append(name)

    def _profile(self, frame, event, argument):
        code = frame.f_code
        if event == "call" and (code.co_name in self._hooks or code in self._providers):
            self.names.append(code.co_name)

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *ignored):
        sys.setprofile(None)
        self._undo()


def test_zero_hook_and_provider_calls_over_50_steps(llm):
    for i in range(4):
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        llm.engine.add_request(str(i), "the other one " * (i + 1), params)
    with HookCalls(llm._assembly.plugins) as calls:
        for _ in range(50):
            llm.engine.step()
    assert llm.engine.stats().num_steps == 50
    assert calls.names == []


def test_the_watch_itself_sees_hooks_and_providers(llm):
    plugins = llm._assembly.plugins
    implementations = plugins._manager.hook.paged_shutdown.get_hookimpls()
    with HookCalls(plugins) as calls:
        plugins._manager.hook.paged_shutdown()
        plugins.records["exec_local"].provider.missing_capabilities(frozenset())
    assert calls.names == ["paged_shutdown"] * (1 + len(implementations)) + ["missing_capabilities"]
