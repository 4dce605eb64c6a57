"""The engine over the shadow executor, with one plugin of the run or a combination of them: law 15 in every setting.

The shadow's next token is a hash of all it reads through the block table: equal tokens prove the paging right.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from paged_conformance.benches.traffic import Ask, play, shape_for, undisturbed
from paged_conformance.marks import layer
from paged_core.api.allocator import AllocatorNeed

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate
    from paged_core.plugins import Plugins

pytestmark = layer("engine")

PROMPTS = [
    (65,),
    tuple(b"hello"),
    tuple(b"hello world"),
    tuple(b"hello world, again"),
    tuple(b"abcdefgh"),
    tuple(b"abcdefghi"),
    tuple(b"0123456789abcdef0123456789"),
    tuple(b"hello world"),
]
ASKS = [Ask(f"r{i}", prompt, 12, at=i // 3) for i, prompt in enumerate(PROMPTS)]
BLOCK_SIZES = (1, 2, 4, 5, 16, 64)
TIGHT, AMPLE = 48, 1024
"""Slots of the pool: two requests, or all of them."""
LONGEST = 64
"""Tokens of the longest sequence: who reserves ahead may want room for one."""


def assert_equal_tokens(plugins: Plugins, num_slots: int, *, chunked: bool = True, **names: str) -> int:
    """Law 15 over block sizes, prefix cache, budgets and one or two steps in flight on a pool of `num_slots`; returns
    how many were preempted."""
    expected = undisturbed(plugins, ASKS)
    num_preempted = 0
    chosen = plugins.records.get(names.get("alloc", "auto"))
    if chosen is not None and "reserves_ahead" in chosen.provider.capabilities:
        num_slots = max(num_slots, LONGEST)
    for block_size, cache, budget in itertools.product(BLOCK_SIZES, (True, False), (11, 64) if chunked else (64,)):
        num_blocks = max(2, num_slots // block_size)
        need = AllocatorNeed(num_blocks, num_blocks, block_size, 16, 64, prefix_cache=cache)
        alloc = names.get("alloc", "auto")
        if alloc != "auto" and not plugins.judge(plugins.records[alloc], need).ok:
            assert block_size != 16, f"{alloc} refuses the default block size: {need}"
            continue
        sizes = {"num_blocks": num_blocks, "num_host_blocks": num_blocks, "block_size": block_size, "max_num_seqs": 8}
        choices = {"prefix_cache": cache, "token_budget": budget, "chunked_prefill": chunked}
        in_flight = 1 + (block_size + cache + budget // 64) % 2
        done = play(plugins, shape_for(plugins, **sizes, **choices, **names), ASKS, in_flight=in_flight)
        setting = f"blocks of {block_size}, {num_blocks} of them, prefix cache {cache}, budget {budget}, {names}"
        setting += f", {in_flight} in flight"
        assert done.error is None, f"{setting}: {done.error}"
        wrong = [ask for ask in ASKS if done.tokens[ask.id] != expected[ask.id]]
        assert not wrong, f"law 15: {setting}: {wrong[0]} gives {done.tokens[wrong[0].id]}"
        num_preempted += sum(done.preemptions.values())
    return num_preempted


@pytest.mark.parametrize("num_slots", [TIGHT, AMPLE])
def test_tokens_do_not_depend_on_how_this_allocator_pages(alloc: Candidate, num_slots: int) -> None:
    assert_equal_tokens(alloc.plugins, num_slots, alloc=alloc.name)


@pytest.mark.parametrize("num_slots", [TIGHT, AMPLE])
def test_tokens_do_not_depend_on_what_this_scheduler_decides(sched: Candidate, num_slots: int) -> None:
    assert_equal_tokens(sched.plugins, num_slots, chunked=sched.has("chunked_prefill"), sched=sched.name)


@pytest.mark.parametrize("num_slots", [TIGHT, AMPLE])
def test_tokens_do_not_depend_on_how_this_plugin_preempts(preempt: Candidate, num_slots: int) -> None:
    preempted = assert_equal_tokens(preempt.plugins, num_slots, preempt=preempt.name)
    assert (preempted > 0) == (num_slots == TIGHT), f"{preempted} preemptions on {num_slots} slots"


@pytest.mark.parametrize("num_slots", [TIGHT, AMPLE])
def test_tokens_do_not_depend_on_the_combination(
    alloc: Candidate, sched: Candidate, preempt: Candidate, num_slots: int
) -> None:
    names = {"alloc": alloc.name, "sched": sched.name, "preempt": preempt.name}
    assert_equal_tokens(alloc.plugins, num_slots, chunked=sched.has("chunked_prefill"), **names)
