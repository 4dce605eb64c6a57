"""Claims about the size of a block, and about the two ways of preemption (paper, Fig. 18b and 19)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from paged_core.costs.choice import Server, find_cost
from paged_core.costs.devices import find_device
from paged_core.costs.models import MODELS
from paged_core.costs.transfers import CALL_S, LINK_BYTES_PER_S, Transfers
from paged_core.costs.work import StepWork, model_work
from paged_core.sim.reproduce.claims.claim import LENGTHS, Claim
from paged_core.sim.reproduce.claims.rates import KNEES, curve
from paged_core.sim.reproduce.setup import MACHINES, Setup
from paged_core.sim.reproduce.tasks import At
from paged_core.sim.reproduce.verdict import Interval, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.sim.reproduce.found import Found
    from paged_core.sim.reproduce.tasks import Size, Task

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes in the paper's figures."""
_RUN_SIZES = (1, 16, 32, 64, 128, 256)
_QUICK_SIZES = (1, 16, 128)
DEFAULT = 16
GOOD: Mapping[str, tuple[int, ...]] = {"sharegpt": (16, 32, 64, 128), "alpaca": (16, 32)}
"""Sizes that the paper finds best."""
WORSE: Mapping[str, tuple[int, ...]] = {"sharegpt": (), "alpaca": (128, 256)}
"""Sizes by which it finds the rate fallen a lot."""
_NEARLY = 0.9
"""A rate that is "as good": this share of the best."""
COMPARABLE = (16, 32, 64)
VICTIM_TOKENS = 256
"""Of the paper's microbenchmark, which does not state it: as many as the largest block, so that none is half empty."""
_SLOWER = (2.5e-6, 13e9)
"""Seconds a chunk and bytes a second of a link over which all that the paper says of its microbenchmark would hold."""
_DEARER = 1.2
"""The paper: recomputing never takes more than 20 % longer than swapping."""


def sizes(size: Size) -> Sequence[int]:
    """Block sizes to run."""
    return _QUICK_SIZES if size.quick else _RUN_SIZES


def block_setup(lengths: str, block_size: int) -> Setup:
    """The paper's vLLM with blocks of that size; the pool holds as many tokens."""
    return Setup(lengths=lengths, block_size=block_size)


def _size_tasks(size: Size) -> list[Task]:
    lengths = ["alpaca"] if size.quick else list(GOOD)
    return [curve(block_setup(one, block_size)) for one in lengths for block_size in sizes(size)]


def _best_sizes(found: Found) -> list[Row]:
    """H14."""
    rows = []
    for lengths in ["alpaca"] if found.size.quick else list(GOOD):
        rates = {one: found.capacity(block_setup(lengths, one)) for one in sizes(found.size)}
        best = max(rates.values())
        good = [one for one in GOOD[lengths] if one in rates]
        what = f"rate of the worst of blocks of {_listed(good)} over the best of all, {LENGTHS[lengths]}"
        worst = min(rates[one] for one in good)
        rows.append(Row("H14", what, "about 1", worst / best, "x", Interval(_NEARLY, math.inf), required=True))
        for one in WORSE[lengths]:
            if one in rates:
                what, less = f"rate of blocks of {one} over the best, {LENGTHS[lengths]}", Interval(0, _NEARLY)
                rows.append(Row("H14", what, "clearly less", rates[one] / best, "x", less, required=True))
    return rows


class Move(NamedTuple):
    """Milliseconds of a victim's way out and back, by either way."""

    swap_ms: float
    recompute_ms: float


def moves(call_s: float = CALL_S, link_bytes_per_s: float = LINK_BYTES_PER_S) -> dict[int, Move]:
    """The paper's microbenchmark, by block size: a victim of OPT-13B, out and in, or computed again.

    Computing again is charged its tokens alone: the fixed part of a step is shared with the prompts of that step.
    """
    device_name, num_devices = MACHINES["opt-13b"]
    device, spec = find_device(device_name), MODELS["opt-13b"]
    server = Server("opt-13b", spec, device, num_devices)
    cost = find_cost("calibrated", server)
    twice = StepWork(2 * VICTIM_TOKENS, 2 * VICTIM_TOKENS**2, 2 * VICTIM_TOKENS, num_prefills=2, num_draws=2)
    once = StepWork(VICTIM_TOKENS, VICTIM_TOKENS**2, VICTIM_TOKENS, num_prefills=1, num_draws=1)
    recompute_ms = 1e3 * (cost.step_s(twice) - cost.step_s(once))
    found = {}
    for size in SIZES:
        chunks = 2 * model_work(spec).num_layers
        transfers = Transfers(server.token_bytes() * size, chunks, device.bytes_per_s, call_s, link_bytes_per_s)
        found[size] = Move(2e3 * transfers.swap_s(-(-VICTIM_TOKENS // size)), recompute_ms)
    return found


def crossings(found: Mapping[int, Move]) -> int:
    """How often the other way becomes the cheaper one as blocks grow."""
    cheaper = [move.swap_ms < move.recompute_ms for _, move in sorted(found.items())]
    return sum(one != other for one, other in pairwise(cheaper))


def dearest(found: Mapping[int, Move]) -> float:
    """The most that recomputing costs, over swapping."""
    return max(move.recompute_ms / move.swap_ms for move in found.values())


def preempt_setups(block_size: int) -> tuple[Setup, Setup]:
    """The same system, its victims computed again, and swapped."""
    return Setup(block_size=block_size), Setup(block_size=block_size, preempt="swap")


def preempt_sizes(size: Size) -> Sequence[int]:
    """Block sizes of the comparison end to end."""
    return (DEFAULT,) if size.quick else sizes(size)


RATE = KNEES["opt-13b", "sharegpt"]["vllm"]
"""Requests a second of the comparison end to end: the knee of the paper's vLLM. The paper names none."""


def _preempt_tasks(size: Size) -> list[Task]:
    return [At(setup, RATE, drain=True) for one in preempt_sizes(size) for setup in preempt_setups(one)]


def _two_ways(found: Found) -> list[Row]:
    """H15."""
    micro = moves()
    swaps = [move.swap_ms for _, move in sorted(micro.items())]
    steepest = max(after / before for before, after in pairwise(swaps))
    flat = max(move.recompute_ms for move in micro.values()) / min(move.recompute_ms for move in micro.values())
    rows = [
        Row("H15", "swap, blocks of 1", "~135 ms", swaps[0], "ms"),
        Row("H15", "swap, blocks of 256", "", swaps[-1], "ms"),
        Row("H15", "recompute", "~20-30 ms", micro[DEFAULT].recompute_ms, "ms"),
        Row(
            "H15",
            "swap: a size over the next smaller, at most",
            "falls",
            steepest,
            "x",
            Interval(0, 1),
            required=True,
        ),
        Row("H15", "recompute: dearest size over cheapest", "flat", flat, "x", Interval(1, 1), required=True),
        Row("H15", "crossings of the two", "1", crossings(micro), "", Interval(1, 1), required=True),
        Row("H15", "recompute over swap, at most", "1.2x", dearest(micro), "x", Interval(0, _DEARER)),
        Row("H15", "the same over a link of 13 GB/s", "", dearest(moves(*_SLOWER)), "x"),
    ]
    for block_size in [one for one in COMPARABLE if one in preempt_sizes(found.size)]:
        recompute, swap = (found.at(setup, RATE, drain=True) for setup in preempt_setups(block_size))
        ratio = swap.normalized_latency / recompute.normalized_latency
        what = f"latency with swap over recompute, end to end, blocks of {block_size}"
        rows.append(Row("H15", what, "comparable", ratio, "x", Interval(1 / 1.2, 1.2)))
    return rows


def _listed(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


CLAIMS = (
    Claim(
        "H14",
        "Blocks of 16 are good, large ones are not",
        "OPT-13B, rate at 0.5 s a token (Fig. 18b), memory side only: no cost of kernels depends on the block here",
        _size_tasks,
        _best_sizes,
    ),
    Claim(
        "H15",
        "Swap and recompute over the size of blocks",
        f"OPT-13B, ShareGPT (Fig. 19); end to end at {RATE} req/s. Link of {LINK_BYTES_PER_S / 1e9:g} GB/s and "
        f"{CALL_S * 1e6:g} us a chunk, "
        "for neither is stated; the shape is what is held to the paper",
        _preempt_tasks,
        _two_ways,
    ),
)
