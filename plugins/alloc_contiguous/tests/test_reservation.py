"""What is reserved, how it is rounded, and who is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from paged_alloc_contiguous import ContiguousProvider, ContiguousSettings
from pydantic import ValidationError

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.params import SamplingParams
from paged_core.api.request import Request, Rows, Sequence

PROVIDER = ContiguousProvider()


def allocator(reservation="max", num_blocks=983, block_size=16, max_len=2048):
    need = AllocatorNeed(num_blocks, 0, block_size, 16, max_len)
    return PROVIDER.create(need, ContiguousSettings(reservation=reservation), SimpleNamespace())


def request(prompt=161, max_tokens=None, true=None, n=1):
    params = SamplingParams(n=n, max_tokens=max_tokens)
    return Request("r", tuple(range(prompt)), params, 0.0, true_output_len=true)


@pytest.mark.parametrize(
    ("reservation", "max_tokens", "true", "slots"),
    [
        ("max", None, None, 2048),
        ("max", 25, 25, 2048),
        ("oracle", None, 25, 161 + 25),
        ("oracle", 300, 25, 161 + 25),
        ("oracle", 300, None, 161 + 300),
        ("oracle", None, None, 2048),
        ("pow2", None, 25, 161 + 32),
        ("pow2", None, 32, 161 + 32),
        ("pow2", None, 33, 161 + 64),
        ("pow2", None, 1, 161 + 1),
        ("pow2", 25, None, 161 + 32),
        ("pow2", None, 1200, 2048),
    ],
)
def test_prompt_and_expected_output_are_reserved(reservation, max_tokens, true, slots) -> None:
    assert allocator(reservation).reserve(request(161, max_tokens, true)) == slots


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 15728), (16, 983)])
@pytest.mark.parametrize(
    ("reservation", "blocks_of_16", "asked"), [("max", 128, 2048), ("oracle", 16, 186), ("pow2", 16, 193)]
)
def test_the_worked_example_of_the_readme(block_size, num_blocks, reservation, blocks_of_16, asked) -> None:
    """161 prompt and 25 output tokens; the run is the same 256 or 2,048 slots whatever the block size."""
    alloc, rows = allocator(reservation, num_blocks, block_size), Rows(16, 2048)
    seq = Sequence(request(161, true=25))
    seq.bind(rows, 3)
    alloc.open(seq)
    assert alloc.stats().used == 0, "nothing is taken before it grows"
    assert alloc.grow(seq, 161) == []
    used = alloc.stats().used
    assert used * block_size == blocks_of_16 * 16
    first = int(alloc.tables[3, 0])
    assert alloc.tables[3, :used].tolist() == list(range(first, first + used))
    rows.num_computed[3] = 161
    row = np.array([3], dtype=np.int32)
    assert alloc.held_slots(row, rows.num_computed[row]).tolist() == [asked]
    assert alloc.stats().tail_waste_slots == used * block_size - 161
    alloc.check()


@pytest.mark.parametrize("block_size", [1, 16])
def test_the_papers_pool_holds_seven_requests_of_the_model_s_length(block_size) -> None:
    """OPT-13B on an A100 with 40 GB: the 7.00 of the paper's Fig. 13."""
    alloc, rows = allocator("max", 15728 // block_size, block_size), Rows(16, 2048)
    grown = 0
    for row in range(9):
        seq = Sequence(request(10))
        seq.bind(rows, row)
        alloc.open(seq)
        grown += alloc.grow(seq, 10) is not None
    assert grown == 7
    alloc.check()


def test_what_no_empty_pool_could_hold_is_refused_with_the_numbers() -> None:
    alloc = allocator("max", num_blocks=128 * 2)
    assert alloc.refuses(request(n=2)) is None
    reason = alloc.refuses(request(n=3))
    assert reason is not None
    assert "3 run(s) of 128 blocks of 16" in reason
    assert "the pool of 256 has no place" in reason
    assert allocator("oracle", num_blocks=128 * 2).refuses(request(n=3, max_tokens=100)) is None


def test_a_pool_without_a_run_of_the_models_length_reserves_the_longest_it_has() -> None:
    alloc = allocator("max", num_blocks=100)
    assert alloc.refuses(request(prompt=1000)) is None, "64 blocks are 1,024 slots"
    assert alloc.refuses(request(prompt=1025)) is not None


def test_a_map_of_the_pool_shows_all_that_is_set_aside() -> None:
    alloc, rows = allocator("oracle", num_blocks=32), Rows(16, 2048)
    seq = Sequence(request(100, max_tokens=28, n=2))
    seq.bind(rows, 0)
    alloc.open(seq)
    assert alloc.grow(seq, 100) == []
    assert alloc.marks().refs.tolist() == [1] * 16 + [0] * 16, "128 slots for each of two branches"


def test_settings_know_three_reservations() -> None:
    assert ContiguousSettings().reservation == "max"
    with pytest.raises(ValidationError):
        ContiguousSettings(reservation="guess")


def test_probe_collects_all_reasons() -> None:
    fit = PROVIDER.probe(AllocatorNeed(-1, 0, 512, 8, 64, required=frozenset({"prefix_cache"})))
    assert fit.reasons == (
        "alloc_contiguous does not have the capability 'prefix_cache'",
        "block size 512 is outside 1..256",
        "num_blocks is negative (-1)",
    )
