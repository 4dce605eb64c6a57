"""Block moves: swap-outs, swap-ins, copies, then writes; also when a step computes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from paged_conformance.benches.executor import BLOCK_SIZE, Lending, Moves, Running, tiny_need
from paged_conformance.benches.sampler import params
from paged_conformance.marks import layer
from paged_conformance.oracles.llama import PlainLlama
from paged_core.testing.tiny import CONFIG, write_tiny_llama

pytestmark = layer("behaviour")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model."""
    return write_tiny_llama(tmp_path_factory.mktemp("moves") / "tiny")


@pytest.fixture(scope="module")
def reference(folder):
    """Greedy continuations by the plain oracle."""
    return PlainLlama(folder, CONFIG)


@pytest.fixture(scope="module")
def lending(executor, folder):
    """Starts executors; closed afterwards."""
    opened = Lending(executor, tiny_need(executor, folder))
    yield opened
    opened.end()


@pytest.fixture
def bench(lending):
    """A started executor that nothing runs on."""
    return lending.bench()


def prefilled(bench, row, length):
    """A sequence that has its prompt computed and one token drawn."""
    prompt = [(5 + 13 * row + 3 * i + i * i) % 250 for i in range(length)]
    running = Running(row, prompt, params(temperature=0, ignore_eos=True), length)
    bench.step({running: length})
    return running


def move_to(bench, running, blocks):
    """Point the sequence's table at other blocks."""
    bench.tables[running.row, : len(blocks)] = blocks


def overwrite(bench, blocks):
    """Write something else into blocks, through a sequence of its own that then is gone."""
    other = Running(
        7, [(17 * i) % 250 for i in range(len(blocks) * BLOCK_SIZE)], params(temperature=0), len(blocks) * BLOCK_SIZE
    )
    bench.num_blocks[7] = len(blocks)
    bench.tables[7, : len(blocks)] = blocks
    bench.step({other: len(other.tokens)})


def check_continues(bench, reference, running, what):
    """Ten more tokens must be those of the reference."""
    bench.decode([running], 10)
    bench.check(reference, [running], what)


def run_empty(bench, moves):
    """A step of moves alone."""
    result = bench.step({}, moves)
    assert result.tokens.shape == (0, 1), f"a step of no tokens returned tokens of shape {result.tokens.shape}"
    assert len(result.num_tokens) == 0
    assert not result.failed


def test_a_step_of_nothing_returns_nothing(bench, reference):
    running = prefilled(bench, 0, 19)
    run_empty(bench, None)
    check_continues(bench, reference, running, "after an empty step")


def test_copies_happen_in_a_step_that_computes_nothing(bench, reference):
    running = prefilled(bench, 0, 40)
    old, new = bench.blocks(running), [bench.free.pop() for _ in range(3)]
    run_empty(bench, Moves(copies=list(zip(old, new, strict=True))))
    overwrite(bench, old)
    move_to(bench, running, new)
    check_continues(bench, reference, running, "blocks copied by a step of zero tokens, originals overwritten")


def test_swaps_happen_in_steps_that_compute_nothing(bench, reference):
    running = prefilled(bench, 1, 40)
    old, host = bench.blocks(running), [5, 0, 11]
    run_empty(bench, Moves(swap_out=list(zip(old, host, strict=True))))
    overwrite(bench, old)
    new = [bench.free.pop() for _ in range(3)]
    run_empty(bench, Moves(swap_in=list(zip(host, new, strict=True))))
    move_to(bench, running, new)
    check_continues(bench, reference, running, "swapped out, blocks overwritten, swapped in elsewhere")


def test_a_copy_comes_before_this_steps_writes(bench, reference):
    """Law 9: the shared last block is copied, then the new token is written into the copy."""
    running = prefilled(bench, 0, 20)
    old, new = bench.blocks(running)[-1], bench.free.pop()
    bench.tables[0, 1] = new
    bench.step({running: 1}, Moves(copies=[(old, new)]))
    overwrite(bench, [old])
    bench.decode([running], 8)
    bench.check(reference, [running], "law 9: the last block copied and written in one step")


def test_a_copy_reads_its_source_before_somebody_overwrites_it(bench, reference):
    """The source changes hands in the very step that copies it: the copy must hold what was there before."""
    running = prefilled(bench, 0, 20)
    old, new = bench.blocks(running)[-1], bench.free.pop()
    other = Running(1, [(9 * i) % 250 for i in range(BLOCK_SIZE)], params(temperature=0, ignore_eos=True), BLOCK_SIZE)
    bench.tables[0, 1], bench.tables[1, 0], bench.num_blocks[1] = new, old, 1
    bench.step({running: 1, other: BLOCK_SIZE}, Moves(copies=[(old, new)]))
    bench.decode([running, other], 8)
    bench.check(reference, [running], "law 9: a copy whose source was overwritten in the same step")
    bench.check(reference, [other], "the sequence that took over the source")


def test_a_swapped_in_block_may_be_copied_in_the_same_step(bench, reference):
    """A gang that returns and decodes at once copies its shared last block: copies follow swap-ins."""
    running = prefilled(bench, 2, 25)
    old, host = bench.blocks(running), [3, 9]
    run_empty(bench, Moves(swap_out=list(zip(old, host, strict=True))))
    overwrite(bench, old)
    back = [bench.free.pop() for _ in range(2)]
    last = bench.free.pop()
    move_to(bench, running, [back[0], last])
    bench.step({running: 1}, Moves(swap_in=list(zip(host, back, strict=True)), copies=[(back[1], last)]))
    bench.decode([running], 8)
    bench.check(reference, [running], "swap-in, copy of the block that came in, write")


def test_swap_outs_come_before_swap_ins(bench, reference):
    """One group leaves the blocks that another returns to, in one step."""
    one, two = prefilled(bench, 0, 22), prefilled(bench, 1, 24)
    first, second, host = bench.blocks(one), bench.blocks(two), [2, 7]
    run_empty(bench, Moves(swap_out=list(zip(first, host, strict=True))))
    overwrite(bench, first)
    # two leaves its blocks, one returns to the very same blocks
    run_empty(bench, Moves(swap_out=[(second[0], 4), (second[1], 5)], swap_in=list(zip(host, second, strict=True))))
    move_to(bench, one, second)
    bench.decode([one], 6)
    run_empty(bench, Moves(swap_in=[(4, first[0]), (5, first[1])]))
    move_to(bench, two, first)
    bench.decode([two], 6)
    bench.check(reference, [one], "returned to blocks that were swapped out in the same step")
    bench.check(reference, [two], "swapped out of blocks that were reused in the same step")


@pytest.mark.parametrize("count", [2, 8])
def test_many_moves_of_one_step_do_not_disturb_each_other(bench, reference, count):
    """Every move of a step at once, in an order unlike that of the blocks."""
    sequences = [prefilled(bench, row, 17 + row) for row in range(3)]
    old = [block for running in sequences for block in bench.blocks(running)][:count]
    new = [bench.free.pop() for _ in old]
    pairs = dict(zip(old, new, strict=True))
    order = np.random.default_rng(count).permutation(len(old))
    run_empty(bench, Moves(copies=[(old[i], new[i]) for i in order]))
    for running in sequences:
        move_to(bench, running, [pairs.get(block, block) for block in bench.blocks(running)])
    overwrite(bench, old[:2])
    for running in sequences:
        check_continues(bench, reference, running, f"{count} copies in one step, row {running.row}")
