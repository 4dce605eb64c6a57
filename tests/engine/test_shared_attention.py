"""Shared-prefix attention through the engine: samples, beams and hits on a long prompt, with detection and without."""

from __future__ import annotations

import json

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.llm import LLM
from paged_core.engine.prefixes import SharedPrefixes
from paged_core.testing.tiny import write_tiny_llama

LONG = "".join(chr(97 + i * i % 26) for i in range(300))
PROMPTS = [LONG + tail for tail in ("one", "two and a little more", "3")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    return str(folder)


@pytest.fixture
def announced(monkeypatch):
    """Sizes of the sets announced since; `announced.silent()` turns detection off."""
    among = SharedPrefixes.among

    class Announced(list):
        on = True

        def silent(self):
            self.on = False

    seen = Announced()

    def watched(prefixes, rows):
        sets = among(prefixes, rows) if seen.on else []
        seen.extend(len(members) for members, _ in sets)
        return sets

    monkeypatch.setattr(SharedPrefixes, "among", watched)
    return seen


def tokens(model, params, **settings):
    """All sequences' tokens, and how often groups were preempted; the second run finds the prompts in the cache."""
    shape = {"num_blocks": 160, "max_num_seqs": 12, "attn": "attn_cpu", "audit": True, **settings}
    with LLM(model, **shape) as llm:
        runs = [llm.generate(PROMPTS, params, use_tqdm=False) for _ in range(2)]
        llm.engine.check()
        num_preempted = sum(llm.engine._ledger.num_preemptions.values())
    return [sequence.token_ids for run in runs for output in run for sequence in output.outputs], num_preempted


KINDS = {
    "greedy": SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    "samples": SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=60, ignore_eos=True),
    "beams": SamplingParams(use_beam_search=True, beam_width=3, temperature=0, max_tokens=60, ignore_eos=True),
}


SMALL = {"greedy": 28, "samples": 40, "beams": 30}


@pytest.mark.parametrize(("kind", "pool"), [*SMALL.items(), *((kind, 160) for kind in KINDS)])
def test_detection_changes_no_token(model, announced, kind, pool):
    """In the small pool members are preempted and come back."""
    told, num_preempted = tokens(model, KINDS[kind], num_blocks=pool)
    assert (num_preempted > 0) == (pool < 160)
    assert announced
    assert max(announced) >= (2 if pool < 160 else 3)
    announced.silent()
    assert tokens(model, KINDS[kind], num_blocks=pool) == (told, num_preempted)


def test_announced_prefixes_reach_the_kernels(model, announced, monkeypatch):
    from paged_attn_cpu import backend

    made = []
    make_plan = backend.make_plan

    def record(*args):
        plan = make_plan(*args)
        made.append(plan.num_shared)
        return plan

    monkeypatch.setattr(backend, "make_plan", record)
    tokens(model, KINDS["samples"])
    assert max(made) >= 1
