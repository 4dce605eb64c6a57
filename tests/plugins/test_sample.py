"""The sample plugin is a real one: it drives an engine to the same tokens as the default scheduler."""

from __future__ import annotations

import pytest

from paged_core.api.params import SamplingParams
from paged_core.errors import PluginUnfitError
from paged_core.plugins import load_plugins
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.shadow import ShadowExecutor


@pytest.fixture
def plugins(sample):
    return load_plugins(modules=[str(sample / "paged_sched_one")], autoload=False, tables={"sched_one": {"chunk": "8"}})


def tokens(plugins, sched: str) -> tuple[dict[str, list[int]], int]:
    """Output ids of three requests, and the most sequences that ever ran together."""
    engine = build_engine(ShadowExecutor(4), EngineShape(sched=sched), plugins=plugins)
    for number in range(3):
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        engine.add_request(str(number), list(range(97, 107 + number)), params)
    results, together = {}, 0
    for _ in range(200):
        if not engine.has_unfinished:
            break
        for output in engine.step():
            results[output.request_id] = output.outputs[0].token_ids
        together = max(together, engine.stats().num_running)
    engine.check()
    return results, together


def test_the_sample_scheduler_drives_an_engine(plugins):
    one, together = tokens(plugins, "one")
    batched, batch = tokens(plugins, "fcfs")
    assert one == batched
    assert len(one) == 3
    assert together == 1
    assert batch == 3


def test_the_sample_scheduler_refuses_what_it_cannot_do(plugins, need):
    from dataclasses import replace

    assert plugins.select("sched", "one", need).provider.Settings.model_fields["chunk"].default == 512
    with pytest.raises(PluginUnfitError, match="Try: turn chunked_prefill on"):
        plugins.select("sched", "one", replace(need, chunked_prefill=False))
