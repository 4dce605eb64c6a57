"""ReplicaRouter: Ray's candidates in the policy's order, and what became of a call."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from paged_core.cluster.order import Order

pytestmark = pytest.mark.usefixtures("ray")
NAMES = ("a", "b", "c")


def candidates(**loads: tuple[int, int]) -> list[Any]:
    return [
        SimpleNamespace(
            replica_id=SimpleNamespace(unique_id=name),
            routing_stats={"loads": {"other": loads[name]}, "num_blocks": 50, "block_size": 4} if name in loads else {},
        )
        for name in NAMES
    ]


@pytest.fixture
def router() -> Any:
    from paged_core.cluster.ray_router import ReplicaRouter

    made = object.__new__(ReplicaRouter)  # the rest of it is Ray's, and needs a cluster
    made.initialize_state()
    return made


def chosen(router: Any, one: Any, among: list[Any]) -> list[str]:
    pending = None if one is None else SimpleNamespace(args=[one])
    groups = asyncio.run(router.choose_replicas(among, pending))
    return ["".join(replica.replica_id.unique_id for replica in group) for group in groups]


def order(num_tokens: int = 10) -> Order:
    return Order(((1, 2),), num_tokens, 1, "here")


def test_orders_go_down_the_ranking_with_what_replicas_told_of_others(router):
    assert chosen(router, order(), candidates(a=(50, 1), b=(0, 0), c=(10, 1))) == ["b", "c", "a"]


def test_the_choice_is_remembered_and_corrected_by_what_ray_did(router):
    first = order()
    best = chosen(router, first, candidates())[0]
    assert first.replica == best
    other = next(name for name in NAMES if name != best)
    router.on_request_routed(SimpleNamespace(args=[first]), SimpleNamespace(unique_id=other), None)
    assert first.replica == other
    first.has_ended = True
    assert chosen(router, order(), candidates())[0] in (best, other), "whoever was sent the prefix may hold it"


def test_asked_again_for_the_same_order_the_router_counts_it_once(router):
    one = order()
    chosen(router, one, candidates())
    chosen(router, one, candidates())
    assert sum(load.num_seqs for load in router._policy._loads("here").values()) == 1


@pytest.mark.parametrize("pending", [None, "a question"])
def test_other_calls_are_ray_s_to_place(router, pending):
    assert chosen(router, pending, candidates()) == ["abc"]
    if pending is not None:
        router.on_request_routed(SimpleNamespace(args=[pending]), SimpleNamespace(unique_id="a"), None)


def test_a_replica_that_has_told_nothing_yet_is_idle_with_an_unknown_pool():
    from paged_core.cluster.policy import Load, Report
    from paged_core.cluster.ray_router import report_of

    assert report_of({}) == Report()
    assert report_of({"loads": {"x": (3, 1)}, "num_blocks": 9, "block_size": 4}) == Report({"x": Load(3, 1)}, 9, 4)
