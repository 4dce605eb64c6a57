from __future__ import annotations

import pytest

from paged_core.engine.clock import VirtualClock
from paged_core.sim.reproduce.setup import KINDS, Kind, Setup


@pytest.mark.parametrize("kind", KINDS)
def test_every_system_can_be_built_with_the_papers_memory(kind: Kind) -> None:
    engine = Setup(kind).system().build(VirtualClock())
    assert engine.facts.num_blocks == 15_728 // 16
    assert engine.facts.max_model_len == 2048
    assert not engine.facts.chunked_prefill
    engine.close()


@pytest.mark.parametrize(
    ("kind", "alloc", "sched"),
    [
        ("vllm", "alloc_cow", "sched_prefill_first"),
        ("oracle", "alloc_contiguous", "sched_prefill_first"),
        ("ft", "alloc_contiguous", "sched_static"),
    ],
)
def test_systems_differ_in_their_plugins(kind: Kind, alloc: str, sched: str) -> None:
    system = Setup(kind).system()
    assert (system.alloc, system.sched) == (alloc, sched)


def test_orcas_differ_in_what_they_reserve() -> None:
    tables = [
        Setup(kind).system().plugins["alloc_contiguous"]["reservation"] for kind in ("max", "pow2", "oracle", "ft")
    ]
    assert tables == ["max", "pow2", "oracle", "max"]


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 15_728), (256, 61)])
def test_the_pool_holds_as_many_tokens_whatever_the_block(block_size: int, num_blocks: int) -> None:
    engine = Setup(block_size=block_size).system().build(VirtualClock())
    assert engine.facts.num_blocks == num_blocks
    engine.close()


def test_only_translation_shares_prefixes_and_only_with_paging() -> None:
    assert Setup(lengths="translation-1").system().prefix_cache
    assert not Setup("oracle", lengths="translation-1").system().prefix_cache
    assert not Setup().system().prefix_cache


def test_several_sequences_a_request() -> None:
    assert Setup().sampling() == {}
    assert Setup(mode="sample", width=4).sampling() == {"n": 4}
    assert Setup(mode="beam", width=6).sampling()["beam_width"] == 6
