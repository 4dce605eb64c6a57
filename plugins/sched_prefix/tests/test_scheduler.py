"""PrefixScheduler over the shadow executor: what it gains, and that nobody starves for it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from paged_sched_prefix import PrefixProvider, PrefixSettings
from pydantic import ValidationError

from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, GroupState, Request, Sequence
from paged_core.api.scheduler import Scheduler, SchedulerNeed
from paged_core.testing.build import EngineShape, build_engine, default_plugins
from paged_core.testing.shadow import ShadowExecutor


class Watch(Scheduler):
    """Notes in which order groups enter."""

    def __init__(self, inner):
        self.inner, self.entered, self.hits = inner, [], {}

    def decide(self, view):
        gaps = {group: group.gap - view.scratch.gap(group) for group in view.waiting}
        decision = self.inner.decide(view)
        for run in decision.run:
            if run.group.state is GroupState.WAITING:
                self.entered.append(run.group.id)
                self.hits[run.group.id] = gaps[run.group]
        return decision

    def forget(self, group):
        self.inner.forget(group)


def scheduler(**settings):
    need = SchedulerNeed(64, 4, 64, 4, 20)
    return PrefixProvider().create(need, PrefixSettings(**settings), SimpleNamespace())


def serve(prompts, sched="sched_prefix", arrivals=None, num_tokens=4, alloc="alloc_cow", max_num_seqs=4, **settings):
    """Play prompts through an engine with 20 blocks; prompt i comes before step `arrivals[i]`."""
    shape = EngineShape(num_blocks=20, max_num_seqs=max_num_seqs, sched=sched, alloc=alloc)
    inner = (
        scheduler(**settings) if settings else default_plugins().create("sched", sched, SchedulerNeed(64, 4, 64, 4, 20))
    )
    watch = Watch(inner)
    engine = build_engine(ShadowExecutor(4), shape, wrap_scheduler=lambda _: watch)
    due = sorted(range(len(prompts)), key=lambda i: (arrivals[i] if arrivals else 0, i))
    tokens, steps = {}, 0
    while due or engine.has_unfinished:
        while due and (not arrivals or arrivals[due[0]] <= steps):
            i = due.pop(0)
            engine.add_request(
                f"{i}", list(prompts[i]), SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
            )
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
        assert steps < 5_000, "somebody starves"
    engine.check()
    return tokens, watch


def few_shot(num_kinds, num_each, seed):
    """Prompts of 32 shared and 6 own tokens, the kinds shuffled."""
    draw = random.Random(seed)
    heads = [[draw.randrange(97, 123) for _ in range(32)] for _ in range(num_kinds)]
    prompts = [[*head, *(draw.randrange(97, 123) for _ in range(6))] for head in heads for _ in range(num_each)]
    draw.shuffle(prompts)
    return prompts


@pytest.mark.parametrize("seed", range(3))
def test_few_shot_prompts_hit_more_than_first_come_first_served_and_say_the_same(seed):
    """Four kinds of prompts whose beginnings do not all fit into the pool."""
    prompts = few_shot(4, 12, seed)
    ours, watch = serve(prompts)
    theirs, fcfs = serve(prompts, "sched_fcfs")
    assert ours == theirs
    assert len(ours) == len(prompts)
    assert sum(watch.hits.values()) > 1.3 * sum(fcfs.hits.values())


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_nobody_is_overtaken_more_often_than_allowed(limit):
    """A request nobody shares with, and then a stream of others that never ends soon."""
    head = [100] * 32
    prompts = [[*head, 97], *([i + 97] * 33 for i in range(3)), *([*head, 98 + i] for i in range(20))]
    tokens, watch = serve(prompts, arrivals=[0, 1, 1, 1, *range(1, 21)], max_overtakes=limit)
    assert len(tokens) == len(prompts)
    order = {int(name): place for place, name in enumerate(watch.entered)}
    overtaken = [sum(order[j] < order[i] for j in range(i + 1, len(prompts))) for i in range(len(prompts))]
    assert max(overtaken) == limit


def test_without_anything_cached_the_first_to_come_is_first():
    prompts = [[97 + i] * 20 for i in range(10)]
    _, watch = serve(prompts)
    assert watch.entered == [str(i) for i in range(10)]


def test_tokens_shared_inside_a_block_are_hit_and_are_no_reason_to_overtake():
    """The last one shares three of four tokens with what is cached, the others nothing."""
    prompts = [[100] * 12, *([110 + i] * 12 for i in range(3)), [*[100] * 3, 120, 121]]
    _, watch = serve(prompts, arrivals=[0, 1, 1, 1, 1], num_tokens=12)
    assert watch.entered == [str(i) for i in range(5)]
    assert watch.hits["4"] == 3


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
def test_heads_that_end_inside_a_block_are_hit_to_their_end_by_whoever_enters_first(alloc):
    """Three kinds of prompts whose heads end inside a block; all but the first of a kind find the whole head."""
    heads = [[97 + kind] * 18 for kind in range(3)]
    prompts = [[*head, 110 + i, 111 + i] for i in range(4) for head in heads]
    ours, watch = serve(prompts, alloc=alloc, max_num_seqs=1)
    theirs, _ = serve(prompts, "sched_fcfs", alloc=alloc, max_num_seqs=1)
    assert ours == theirs
    assert sorted(watch.hits.values()) == [0] * 3 + [18] * 9
    assert [int(name) % 3 for name in watch.entered] == [0] * 4 + [1] * 4 + [2] * 4


def test_only_the_window_is_compared():
    head = [100] * 32
    prompts = [[*head, 97], *([101 + i] * 33 for i in range(6)), [*head, 98]]
    arrivals = [0, *[2] * 7]
    _, wide = serve(prompts, arrivals=arrivals, num_tokens=12, window=7, max_overtakes=64)
    _, narrow = serve(prompts, arrivals=arrivals, num_tokens=12, window=1, max_overtakes=64)
    assert wide.entered.index("7") == 1
    assert narrow.entered == [str(i) for i in range(8)]


def view_of(waiting, hits, *, free):
    """A view in which somebody else runs, `free` blocks are left and every prompt costs a block per four tokens."""

    def need(group, num):
        return -(-num // 4)

    def take(group, num):
        scratch.free -= need(group, num)
        return scratch.free >= 0

    scratch = SimpleNamespace(
        free=free, total=64, gap=lambda group: group.gap - hits.get(group.id, 0), need=need, take=take
    )
    scratch.need_decodes, scratch.take_decodes = (lambda: 0), (lambda: True)
    return SimpleNamespace(
        token_budget=64, num_decode_tokens=1, num_free_seqs=8, prefilling=[], preempted=[], scratch=scratch,
        waiting=waiting, running=[object()],
    )  # fmt: skip


def test_a_head_that_does_not_fit_is_not_skipped():
    groups = []
    for name, length in (("small", 8), ("large", 40)):
        request = Request(name, tuple(range(length)), SamplingParams(), 0.0)
        groups.append(Group(request, [Sequence(request)]))
    blocked = scheduler().decide(view_of(groups, {"large": 16}, free=5))
    assert blocked.run == []  # the large one is first by its hits and needs six blocks
    enters = scheduler().decide(view_of(groups, {"large": 16}, free=9))
    assert [(run.group.id, run.num_tokens) for run in enters.run] == [("large", 24), ("small", 8)]


def test_settings_out_of_range_are_refused():
    for wrong in ({"max_overtakes": -1}, {"window": 0}, {"watermark": 1.0}, {"aging": 3}):
        with pytest.raises(ValidationError):
            PrefixSettings(**wrong)
    assert not PrefixProvider().probe(SchedulerNeed(64, 4, 64, 4, 20, required=frozenset({"fcfs"}))).ok
