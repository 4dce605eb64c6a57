"""Results depend on a sequence alone: bit for bit, whatever its neighbours, the threads or the caller."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

SEQUENCES = [(0, 1), (300, 1), (17, 5), (2000, 1), (0, 130), (63, 64), (255, 1)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_alone_equals_with_neighbours(world, dtype, threads):
    shape = {"heads": (9, 3), "head_dim": 64, "block_size": 16, "dtype": dtype, "kv_dtype": dtype}
    together = world(SEQUENCES, threads=threads, **shape)
    out, _ = together.run()
    alone = world(SEQUENCES, threads=1, **shape)
    start = 0
    for span in alone.spans:
        single, _ = alone.run([span])
        assert torch.equal(single, out[start : start + span[2]]), span
        start += span[2]


def test_prefill_rows_equal_whatever_the_chunk(world):
    """Tiles lie at absolute positions, so a row's arithmetic does not know which chunk it came in."""
    whole, _ = world([(0, 200)], block_size=16).run()
    paged = world([(0, 200)], block_size=16)
    pieces = [paged.run([(0, first, 50)])[0] for first in range(0, 200, 50)]
    assert torch.equal(torch.cat(pieces), whole)


def test_block_size_changes_no_bit(world):
    results = [world(SEQUENCES, block_size=block_size).run()[0] for block_size in (1, 3, 16, 256)]
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("block_size", [4, 16])
def test_case_a20_short_prompts_in_one_batch(world, check, block_size):
    """Case A20: prompts of 1, 5, 7 and 8 tokens; a batch above one must not shift anybody's blocks."""
    paged = world([(0, n) for n in (1, 5, 7, 8)], block_size=block_size)
    out = check(paged)
    assert torch.equal(out[1:6], paged.run([(1, 0, 5)])[0])


@pytest.mark.parametrize("batch_size", [1, 2, 6])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("prefix", [0, 8])
def test_case_a21_near_identical_prompts(world, batch_size, threads, prefix):
    """Case A21 and museum 50: prompts equal but for one middle token must not be mixed up."""
    paged = world([(prefix, 20 - prefix)] * 6, threads=threads)
    for i in range(1, 6):
        for part in range(3):
            paged.data[i][part][:] = paged.data[0][part]
            paged.data[i][part][10] += 0.1 * i
    paged._fill_prefixes()
    cold = [paged.run([span])[0] for span in paged.spans]
    for first in range(0, 6, batch_size):
        spans = paged.spans[first : first + batch_size]
        out, _ = paged.run(spans)
        assert torch.equal(out, torch.cat(cold[first : first + batch_size]))
    assert len({tuple(c[-1].flatten().tolist()) for c in cold}) == 6


@pytest.mark.parametrize("batch_size", [1, 7])
def test_museum_50_batches_of_one_and_seven(world, check, batch_size):
    check(world([(11 * i, 1 + i % 3) for i in range(batch_size)], block_size=16))


def test_two_engines_in_two_threads(world):
    worlds = [world(SEQUENCES, seed=seed, threads=2) for seed in (1, 2)]
    expected = [w.run()[0] for w in worlds]

    def repeat(index: int) -> bool:
        return all(torch.equal(worlds[index].run()[0], expected[index]) for _ in range(20))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(repeat, (0, 1))) == [True, True]


def test_the_pool_of_our_own_gives_the_same_bits(world, monkeypatch, caplog):
    """Without torch's OpenMP the work runs on Python threads, said once in the log."""
    expected, _ = world(SEQUENCES, threads=2).run()
    monkeypatch.setattr("paged_core.native.team._torch_openmp", lambda: None)
    paged = world(SEQUENCES, threads=3)
    assert "threads of their own" in caplog.text
    assert torch.equal(paged.run()[0], expected)
    paged.backend._team.close()
