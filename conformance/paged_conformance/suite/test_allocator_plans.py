"""Any plan: whatever a scratch accepted, in whatever order, can be carried out in the ledger's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paged_conformance.marks import layer
from paged_conformance.oracles.allocator_plan import Plan
from paged_conformance.oracles.allocator_shape import Shape
from paged_conformance.oracles.allocator_world import World
from paged_core.api.request import Group, GroupState, Residency

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

pytestmark = layer("laws")

LONGEST = 16  # tokens: all that prompts and one step more may have, so that who reserves ahead has room for several
QUICK = (Phase.explicit, Phase.generate)  # the first failure as it is: shrinking it may take a minute
PROMPTS = st.builds(  # with long common beginnings, so that there is something to hit
    lambda length, tail: [0] * length + tail,
    st.sampled_from([8, 10, 4, 0]),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
)


def _scene(world: World, data: st.DataObject) -> list[Group]:
    """Groups in all states, as far as there is room for them."""
    groups = []
    for tokens in data.draw(st.lists(PROMPTS, min_size=1, max_size=6), label="prompts"):
        seq = world.seq(tokens)
        if data.draw(st.booleans(), label="stays waiting"):
            groups.append(world.group(seq, state=GroupState.WAITING, residency=Residency.NONE))
            continue
        world.open(seq)
        num_tokens = seq.gap if data.draw(st.booleans(), label="whole") else data.draw(st.integers(1, seq.gap))
        if not world.compute(seq, num_tokens) or data.draw(st.integers(0, 4), label="left already") == 4:
            world.free_seq(seq)
            continue
        branches = [seq]
        if seq.gap == 0:
            if world.alloc_forks:
                branches += [world.fork(seq) for _ in range(data.draw(st.integers(0, 2), label="forks"))]
            for number, branch in enumerate(branches):
                world.append(branch, number)
        groups.append(world.group(*branches))
    return groups


def _preempt(world: World, group: Group, data: st.DataObject) -> None:
    """Some running groups are away already when the plan is made."""
    how = data.draw(st.sampled_from(["stay", "swap", "drop"]), label="before the step")
    if how == "swap" and world.alloc_swaps and world.swap_out(group) is not None:
        group.state = GroupState.PREEMPTED
    elif how == "drop" and len(group.live) == 1:
        world.drop(group.live[0])
        group.state, group.residency = GroupState.PREEMPTED, Residency.NONE


def _act(plan: Plan, group: Group, data: st.DataObject) -> None:
    runs = group.state is GroupState.RUNNING
    action = data.draw(st.sampled_from(["take", "give back", "decode all"]), label="action")
    if action == "decode all":
        if not plan.decodes:
            plan.take_decodes()
        return
    if group in plan.victims or (plan.decodes and group in plan.decoding):
        return
    if action == "give back":
        if runs and group not in plan.runs:
            plan.give_back(group)
        return
    left = plan.scratch.gap(group) - plan.runs.get(group, 0)
    if left:
        whole = len(group.live) > 1
        plan.take(group, left if whole else data.draw(st.integers(1, left), label="tokens"))


def test_whatever_a_scratch_accepted_can_be_carried_out_in_ledger_order(alloc: Candidate) -> None:
    @settings(
        max_examples=60 if alloc.quick else 300,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=QUICK if alloc.quick else tuple(Phase),
    )
    @given(st.data())
    def any_plan(data: st.DataObject) -> None:
        shape = Shape(
            num_blocks=data.draw(st.sampled_from([12, 8, 20, 5, 2])),
            num_host_blocks=data.draw(st.sampled_from([0, 8])) if alloc.has("swap") else 0,
            max_blocks=-(-LONGEST // Shape().need(alloc).block_size),
        )
        world = World(alloc, shape)
        groups = _scene(world, data)
        for group in groups:
            if group.state is GroupState.RUNNING:
                _preempt(world, group, data)
        plan = Plan(world, [group for group in groups if group.state is GroupState.RUNNING])
        for _ in range(data.draw(st.integers(4, 10), label="number of actions")):
            if groups:
                _act(plan, data.draw(st.sampled_from(groups), label="group"), data)
        plan.apply()
        world.drain()

    any_plan()
