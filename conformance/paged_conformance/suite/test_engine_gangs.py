"""Several sequences per request through the engine: every branch equals its own seed run alone, whatever happens to it.

The shadow's next token is a hash of all that a branch reads through its block table, and of its seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_conformance.benches.traffic import shape_for
from paged_conformance.marks import layer
from paged_core.api.params import SamplingParams, branch_seed
from paged_core.errors import RequestError
from paged_core.testing.build import build_engine
from paged_core.testing.shadow import ShadowExecutor

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.plugins import Plugins

pytestmark = layer("engine")

PROMPTS = (tuple(b"half full"), tuple(b"whole blocks"), (7,), tuple(b"half full too"))
NUM_BRANCHES, NUM_TOKENS, SEED, BLOCK = 3, 9, 5, 4
TIGHT, AMPLE = 24, 128
"""Blocks of the pool: about two gangs, or all of them. One gang ends at 3 x 6 blocks at most."""
LONGEST = 64
"""Tokens of the longest branch that the engines of these tests take."""


def answers(
    plugins: Plugins, params: SamplingParams, num_blocks: int, **names: Any
) -> tuple[list[list[list[int]]], int]:
    """Tokens by request and branch, and how often requests were preempted."""
    sizes: dict[str, Any] = {"num_blocks": num_blocks, "num_host_blocks": num_blocks, "block_size": BLOCK}
    shape = shape_for(plugins, **sizes, max_num_seqs=12, token_budget=32, **names)
    engine = build_engine(ShadowExecutor(BLOCK), shape, plugins=plugins)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), list(prompt), params)
    done = {}
    for _ in range(3000):
        if not engine.has_unfinished:
            break
        done |= {output.request_id: output for output in engine.step() if output.finished}
    engine.check()
    preemptions = sum(engine.stats().preemptions.values())
    return [[list(one.token_ids) for one in done[str(i)].outputs] for i in range(len(PROMPTS))], preemptions


def assert_beams_do_not_depend_on(plugins: Plugins, num_blocks: int, **names: Any) -> int:
    """Law 15 for beam search, whose beams fork and end at every step; returns the number of preemptions."""
    params = SamplingParams(
        use_beam_search=True, beam_width=3, n=3, temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True
    )
    undisturbed, _ = answers(plugins, params, AMPLE, prefix_cache=False)
    beams, preemptions = answers(plugins, params, num_blocks, **names)
    for prompt, got, want in zip(PROMPTS, beams, undisturbed, strict=True):
        assert got == want, f"law 15: beams of {bytes(prompt)!r} on {num_blocks} blocks, {names}: {got}, not {want}"
    return preemptions


def sampled(num_branches: int, seed: int) -> SamplingParams:
    """A request of `num_branches` draws."""
    return SamplingParams(n=num_branches, temperature=1.0, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True)


def assert_branches_equal_their_seeds(plugins: Plugins, num_blocks: int, **names: Any) -> int:
    """Law 16 and the fork rules; returns the number of preemptions."""
    gangs, preemptions = answers(plugins, sampled(NUM_BRANCHES, SEED), num_blocks, **names)
    for branch in range(NUM_BRANCHES):
        alone, _ = answers(plugins, sampled(1, branch_seed(SEED, branch)), AMPLE, prefix_cache=False)
        for prompt, gang, lone in zip(PROMPTS, gangs, alone, strict=True):
            where = f"branch {branch} of prompt {bytes(prompt)!r} on {num_blocks} blocks, {names}"
            assert gang[branch] == lone[0], f"laws 15 and 16: {where} gives {gang[branch]}, alone {lone[0]}"
    return preemptions


def room(alloc: Candidate, num_blocks: int) -> int:
    """`num_blocks`, or enough for one gang of those that reserve ahead: three branches of the longest length."""
    return max(num_blocks, NUM_BRANCHES * LONGEST // BLOCK) if alloc.has("reserves_ahead") else num_blocks


def assert_refused(alloc: Candidate, error: RequestError) -> None:
    """Who declares `fork` may refuse nobody; others copy what branches have in common, or refuse with a reason."""
    assert not alloc.has("fork"), f"fork is declared, yet a request of {NUM_BRANCHES} branches is refused: {error}"


@pytest.mark.parametrize("num_blocks", [TIGHT, AMPLE])
def test_branches_do_not_depend_on_how_this_allocator_shares(alloc: Candidate, num_blocks: int) -> None:
    try:
        assert_branches_equal_their_seeds(alloc.plugins, room(alloc, num_blocks), alloc=alloc.name)
    except RequestError as error:
        assert_refused(alloc, error)


@pytest.mark.parametrize("num_blocks", [TIGHT, AMPLE])
def test_beams_do_not_depend_on_how_this_allocator_shares(alloc: Candidate, num_blocks: int) -> None:
    try:
        assert_beams_do_not_depend_on(alloc.plugins, room(alloc, num_blocks), alloc=alloc.name)
    except RequestError as error:
        assert_refused(alloc, error)


@pytest.mark.parametrize("num_blocks", [TIGHT, AMPLE])
def test_beams_do_not_depend_on_what_this_scheduler_decides(sched: Candidate, num_blocks: int) -> None:
    assert_beams_do_not_depend_on(
        sched.plugins, num_blocks, sched=sched.name, chunked_prefill=sched.has("chunked_prefill")
    )


@pytest.mark.parametrize("num_blocks", [TIGHT, AMPLE])
def test_beams_do_not_depend_on_how_this_plugin_preempts(preempt: Candidate, num_blocks: int) -> None:
    preempted = assert_beams_do_not_depend_on(preempt.plugins, num_blocks, preempt=preempt.name)
    assert (preempted > 0) == (num_blocks == TIGHT), f"{preempted} preemptions on {num_blocks} blocks"


@pytest.mark.parametrize("num_blocks", [TIGHT, AMPLE])
def test_branches_do_not_depend_on_what_this_scheduler_decides(sched: Candidate, num_blocks: int) -> None:
    chunked = sched.has("chunked_prefill")
    assert_branches_equal_their_seeds(sched.plugins, num_blocks, sched=sched.name, chunked_prefill=chunked)


@pytest.mark.parametrize("num_blocks", [TIGHT, AMPLE])
def test_branches_do_not_depend_on_how_this_plugin_preempts(preempt: Candidate, num_blocks: int) -> None:
    preempted = assert_branches_equal_their_seeds(preempt.plugins, num_blocks, preempt=preempt.name)
    assert (preempted > 0) == (num_blocks == TIGHT), f"{preempted} preemptions on {num_blocks} blocks"
