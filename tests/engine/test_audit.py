"""A scheduler that breaks a law is stopped before anything is applied, and the law is named."""

from __future__ import annotations

import pytest

from paged_core.api.params import SamplingParams
from paged_core.api.scheduler import Decision, Run, Scheduler
from paged_core.errors import PluginContractError

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


class Bad(Scheduler):
    """Obeys until `after` steps, then proposes what `decide_badly` says."""

    def __init__(self, inner, decide_badly, after=3):
        self.inner, self.decide_badly, self.after = inner, decide_badly, after

    def decide(self, view):
        if view.step >= self.after:
            return self.decide_badly(view)
        return self.inner.decide(view)


def all_waiting(view):
    return Decision(run=[Run(group, 1) for group in view.waiting])


BROKEN = {
    "budget overrun": ("law 6", lambda v: Decision(run=[Run(next(iter(v.waiting)), 59)], decode_all=True)),
    "same group twice": ("law 7", lambda v: Decision(run=[Run(v.running[0], 1), Run(v.running[0], 1)])),
    "decode_all and run": ("law 7", lambda v: Decision(run=[Run(v.running[0], 1)], decode_all=True)),
    "preempts a waiting group": ("law 7", lambda v: Decision(preempt=list(v.waiting)[:1])),
    "resumes a running group": ("law 7", lambda v: Decision(resume=[v.running[0]])),
    "victim receives slots": ("law 11", lambda v: Decision(run=[Run(v.running[0], 1)], preempt=[v.running[0]])),
    "more than the gap": ("gap rule", lambda v: Decision(run=[Run(v.running[0], 2)])),
    "no token": ("gap rule", lambda v: Decision(run=[Run(v.running[0], 0)])),
    "more sequences than the cap": ("law 6", all_waiting),
    "not taken from the scratch": ("scratch did not accept", lambda v: Decision(run=[Run(next(iter(v.waiting)), 60)])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_law_is_named(shadow, name):
    law, decide_badly = BROKEN[name]

    engine = shadow(wrap=lambda inner: Bad(inner, decide_badly), max_num_seqs=2, num_blocks=16, token_budget=60)
    engine.add_request("a", [1, 2, 3], GREEDY)
    if name != "not taken from the scratch":
        engine.add_request("b", [4, 5, 6], GREEDY)
    for _ in range(3):
        engine.step()
    engine.add_request("c", [7] * 60, GREEDY)
    engine.add_request("d", [8] * 60, GREEDY)
    with pytest.raises(PluginContractError, match=law):
        engine.step()


def test_a_scheduler_that_never_runs_anything_is_reported(shadow):
    engine = shadow(wrap=lambda inner: Bad(inner, lambda view: Decision(), after=0))
    engine.add_request("a", [1, 2, 3], GREEDY)

    def step_for_ever():
        for _ in range(100_000):
            engine.step()

    with pytest.raises(PluginContractError, match="progress"):
        step_for_ever()
