"""Executors that declare `tensor_parallel`: which world sizes they take, what ranks hold, and that nobody notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paged_conformance.benches.executor import BLOCK_SIZE, ExecutorBench, Moves, Running, tiny_need
from paged_conformance.benches.sampler import params
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.llama import PlainLlama
from paged_core.testing.tiny import CONFIG, write_tiny_llama

pytestmark = layer("behaviour")

HEADS = {
    "4 on 2": {},
    "6 on 3": {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96, "intermediate_size": 100},
}
FITTING = {"4 on 2": (1, 2, 4), "6 on 3": (1, 3, 6)}
"""World sizes that divide the query heads, and divide the KV heads or are a multiple of them."""
RUN = [("4 on 2", 1), ("4 on 2", 2), ("6 on 3", 3)]
REPLICATED = [("4 on 2", 4)]  # two ranks a KV head
MOST = 9


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder for each shape."""
    return {
        heads: write_tiny_llama(tmp_path_factory.mktemp("parallel") / "tiny", **changes)
        for heads, changes in HEADS.items()
    }


@pytest.fixture(scope="module")
def need(executor, models):
    """The need of a shape and world size."""

    def need_of(heads, size):
        return replace(tiny_need(executor, models[heads]), world_size=size)

    return need_of


def plain(models, heads):
    """The oracle of a shape."""
    return PlainLlama(models[heads], CONFIG | HEADS[heads])


def sequence(row, length):
    """A greedy sequence with a prompt of its own."""
    prompt = [(5 * row + 13 * i + i * i) % 250 for i in range(length)]
    return Running(row, prompt, params(temperature=0, ignore_eos=True), length)


@requires("tensor_parallel")
@pytest.mark.parametrize("heads", HEADS)
def test_sizes_that_cut_the_heads_evenly_are_taken_and_others_refused_with_those(executor, need, heads):
    fitting = FITTING[heads]
    for size in range(1, MOST):
        fit = executor.fit(need(heads, size))
        assert fit.ok == (size in fitting), f"{size} ranks for {heads} heads: {fit}"
        if not fit.ok:
            words = " ".join(fit.reasons).replace(",", " ").replace(".", " ").split()
            missing = [each for each in fitting if str(each) not in words]
            assert not missing, f"a refusal names the sizes that work; {missing} is not in {fit.reasons}"


@requires("tensor_parallel")
@pytest.mark.parametrize(("heads", "size"), RUN + REPLICATED)
def test_tokens_of_every_size_equal_the_plain_reference(executor, models, need, heads, size):
    """Prompts around block edges, in chunks beside decodes, moved to the host and back, copied."""
    bench = ExecutorBench(executor, need(heads, size))
    try:
        sequences = [sequence(row, length) for row, length in enumerate((1, BLOCK_SIZE, 2 * BLOCK_SIZE + 5))]
        bench.decode(sequences, 4)
        long = sequence(3, 45)
        for chunk in (7, 16, 1, 21):
            bench.step({**dict.fromkeys(sequences, 1), long: chunk})
        away = list(zip(bench.blocks(long), (1, 4, 6), strict=True))
        back = [bench.free.pop() for _ in away]
        bench.step(dict.fromkeys(sequences, 1), Moves(swap_out=away))
        bench.tables[3, : len(back)] = back
        moves = Moves(swap_in=[(host, block) for (_, host), block in zip(away, back, strict=True)])
        bench.decode_with([*sequences, long], moves)
        bench.decode([*sequences, long], 5)
        bench.check(plain(models, heads), [*sequences, long], f"{size} ranks, {heads} heads")
    finally:
        bench.executor.close()


@requires("tensor_parallel")
@pytest.mark.parametrize(("heads", "size"), RUN + REPLICATED)
def test_each_rank_keeps_its_kv_heads_and_no_more(executor, need, heads, size):
    """ceil(KV heads / N) of them: bytes of a block over all ranks follow, and so does the number of blocks."""
    one, several = (executor.create(need(heads, ranks)) for ranks in (1, size))
    try:
        whole, shared = one.capacity(), several.capacity()
    finally:
        one.close()
        several.close()
    kv_heads = CONFIG["num_key_value_heads"] if heads == "4 on 2" else HEADS[heads]["num_key_value_heads"]
    held = -(-kv_heads // size)
    assert shared.num_ranks == size, f"{shared.num_ranks} ranks of {size}"
    assert shared.block_bytes * kv_heads == whole.block_bytes * held * size, (
        f"a rank of {size} keeps {shared.block_bytes / size:g} bytes of a block, {held} of {kv_heads} KV heads take "
        f"{whole.block_bytes * held / kv_heads:g}"
    )
    memory = need(heads, size).kv_memory_bytes
    assert 0 < shared.num_blocks * shared.block_bytes <= memory, f"{shared} does not fit into {memory} bytes"
