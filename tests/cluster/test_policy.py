"""LMetric: which replica a call gets, and why."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_core.cluster.hotspot import HotspotGuard
from paged_core.cluster.order import Order, prefix_keys
from paged_core.cluster.policy import SHUNNED_FOR, LMetric, Load, Report

NAMES = ("a", "b", "c", "d")
numbers = count()


def reports(**loads: tuple[int, int]) -> dict[str, Report]:
    return {name: Report({"elsewhere": Load(*loads.get(name, (0, 0)))}, num_blocks=100) for name in NAMES}


def order(num_tokens: int = 64, prefix: int | None = None, source: str = "here") -> Order:
    """A prompt of its own, or one whose blocks all are `prefix`'s."""
    root = next(numbers) if prefix is None else f"prefix {prefix}"
    return Order((prefix_keys(range(num_tokens), 16, root),), num_tokens, 1, source)


@pytest.fixture
def policy() -> LMetric:
    made = LMetric()
    made.update(reports())
    return made


def placed(policy: LMetric, one: Order, name: str | None = None) -> str:
    """Place it where it belongs, or where the test wants it."""
    chosen = name or policy.rank(one)[0]
    policy.place(one, chosen)
    return chosen


def test_tokens_to_prefill_times_sequences_decide(policy):
    policy.update(reports(a=(100, 1), b=(30, 3), c=(500, 0), d=(0, 9)))
    # (100 + 64) * 2 = 328, (30 + 64) * 4 = 376, (500 + 64) * 1 = 564, (0 + 64) * 10 = 640
    assert policy.rank(order(64)) == ["a", "b", "c", "d"]


def test_idle_replicas_are_told_apart_by_what_they_have_cached(policy):
    placed(policy, first := order(prefix=1), "c")
    first.has_ended = True
    assert policy.rank(order(prefix=1))[0] == "c"
    assert policy.rank(order(prefix=2))[0] != "c"  # c was the last to get something


def test_a_hit_is_worth_as_much_as_the_load_it_outweighs(policy):
    placed(policy, first := order(64, prefix=1), "c")
    first.has_begun = True  # c has one sequence: (64 - 63) * 2 against 64 * 1
    assert policy.rank(order(64, prefix=1))[0] == "c"
    policy.update(reports(c=(31, 0)))  # (31 + 1) * 2 = 64: as much, and c got something last
    assert policy.rank(order(64, prefix=1))[0] != "c"


def test_equal_replicas_take_turns(policy):
    chosen = []
    for _ in range(8):
        one = order()
        chosen.append(placed(policy, one))
        one.has_ended = True
    assert sorted(chosen[:4]) == sorted(chosen[4:]) == list(NAMES)


def test_own_orders_count_until_they_end_and_their_tokens_until_they_begin(policy):
    for name in NAMES[1:]:
        placed(policy, order(10), name)
    placed(policy, mine := order(100), "a")
    assert policy.rank(order())[-1] == "a"
    mine.has_begun = True  # 64 * 2 against (10 + 64) * 2
    assert policy.rank(order())[0] == "a"
    mine.has_ended = True
    assert policy._loads("here")["a"] == Load(0, 0)


def test_what_a_replica_reports_of_this_router_is_not_counted_twice(policy):
    placed(policy, order(100), "a")
    told = {"here": Load(100, 1), "elsewhere": Load(7, 1)}
    policy.update({name: Report(told if name == "a" else {}) for name in NAMES})
    assert policy._loads("here")["a"] == Load(107, 2)


def test_an_order_that_is_asked_for_again_does_not_stand_in_its_own_way(policy):
    one = order(1000)
    first = placed(policy, one)
    assert policy.rank(one)[0] == first or policy._loads("here")[first] == Load(0, 0)
    policy.move(one, "d")
    assert [name for name, load in policy._loads("here").items() if load != Load()] == ["d"]


def test_nothing_is_known_of_a_replica_that_comes_back(policy):
    placed(policy, order(prefix=1), "c")
    policy.update({name: report for name, report in reports().items() if name != "c"})
    assert "c" not in policy.rank(order())
    policy.update(reports())
    assert policy._replicas["c"].hits(order(prefix=1)) == 0


def test_a_replica_is_believed_to_hold_no_more_than_its_pool(policy):
    placed(policy, order(64 * 16, prefix=1), "a")
    policy.update({name: Report(num_blocks=10) for name in NAMES})
    assert policy._replicas["a"].hits(order(64 * 16, prefix=1)) == 10 * 16


def test_an_order_of_a_replica_that_is_gone_burdens_nobody(policy):
    policy.move(order(), "gone")
    assert all(load == Load() for load in policy._loads("here").values())


def test_a_replica_that_lost_a_call_comes_last_for_a_while(policy):
    best = placed(policy, lost := order(prefix=1))
    lost.was_lost = lost.has_ended = True
    for _ in range(SHUNNED_FOR):
        assert policy.rank(order(prefix=1))[-1] == best
        one = order()
        assert placed(policy, one) != best
        one.has_ended = True
    assert policy.rank(order(prefix=1))[0] == best, "perhaps it was only out of reach"
    placed(policy, again := order(prefix=1), best)
    again.was_lost = again.has_ended = True
    assert policy.rank(order(prefix=1))[-1] == best
    policy.update({name: report for name, report in reports().items() if name != best})
    policy.update(reports())
    assert policy._lost == {}


def test_without_replicas_there_is_no_ranking():
    assert LMetric().rank(order()) == []


@settings(max_examples=60)
@given(st.data())
def test_the_first_of_the_ranking_has_the_least_score_and_ends_leave_nothing(data):
    policy, one_open = LMetric(), []
    loads = {name: Load(data.draw(st.integers(0, 300)), data.draw(st.integers(0, 4))) for name in NAMES}
    policy.update({name: Report({"elsewhere": load}) for name, load in loads.items()})
    for _ in range(data.draw(st.integers(0, 12))):
        one = order(data.draw(st.integers(1, 200)), data.draw(st.one_of(st.none(), st.integers(0, 2))))
        hits = {name: replica.hits(one) for name, replica in policy._replicas.items()}
        before = policy._loads("here")
        scores = {
            name: (before[name].num_tokens + one.num_tokens - hits[name]) * (before[name].num_seqs + 1)
            for name in NAMES
        }
        ranked = policy.rank(one)
        assert sorted(ranked) == list(NAMES)
        holders = [name for name in NAMES if hits[name] == max(hits.values()) > 0]
        rest = [scores[name] for name in ranked if name not in holders]
        assert scores[ranked[0]] == min(scores.values()) or (ranked[0] not in holders and scores[ranked[0]] == rest[0])
        assert rest == sorted(rest)
        policy.place(one, ranked[0])
        assert one.to_prefill == one.num_tokens - hits[ranked[0]] > 0
        one_open.append(one)
        if data.draw(st.booleans()):
            one_open.pop(data.draw(st.integers(0, len(one_open) - 1))).has_ended = True
    for one in one_open:
        one.has_ended = True
    assert policy._loads("here") == loads


def test_the_guard_masks_after_2m_hits_in_a_row_and_more_than_the_fair_share():
    guard, group = HotspotGuard(), frozenset({"a"})
    guard.note(group, "a", NAMES)
    assert not guard.masks(group, 4), "one call is no row of two"
    guard.note(group, "a", NAMES)
    assert guard.masks(group, 4)
    for _ in range(6):  # x / x' = 2 / 6: no more than the fair 1 / 3
        guard.note(frozenset(), "b", NAMES)
    assert not guard.masks(group, 4)


def test_a_call_that_went_elsewhere_breaks_the_row():
    guard, group = HotspotGuard(), frozenset({"a"})
    for chosen in "aab":
        guard.note(group, chosen, NAMES)
    assert not guard.masks(group, 4)


def test_nobody_is_masked_when_all_or_none_hold_the_prefix():
    guard = HotspotGuard()
    for group in (frozenset(NAMES), frozenset()):
        for _ in range(20):
            guard.note(group, "a", NAMES)
        assert not guard.masks(group, 4)


def test_the_guard_remembers_a_bounded_past():
    guard = HotspotGuard()
    for i in range(3000):
        guard.note(frozenset({str(i)}), "a", NAMES)
    assert len(guard._recent) == sum(guard._counts.values()) == 32
    assert len(guard._streaks) == 1024


def test_a_crowded_holder_is_passed_over_and_an_idle_one_is_not(policy):
    for idle in (True, False):
        for _ in range(3):
            one = order(64, prefix=int(idle))
            placed(policy, one, "a")
            one.has_begun, one.has_ended = True, idle
        assert (policy.rank(order(64, prefix=int(idle)))[0] == "a") is idle
