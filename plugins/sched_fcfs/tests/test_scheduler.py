"""FcfsScheduler over the tests' own ledger: one promise a test."""

from __future__ import annotations

import pytest

from paged_core.api.request import GroupState, Residency


def test_newcomers_run_in_the_order_they_came(books):
    world = books(budget=10)
    first, second, third = world.add(6), world.add(6), world.add(6)
    decision = world.step()
    assert [(run.group, run.num_tokens) for run in decision.run] == [(first, 6), (second, 4)]
    assert third.state is GroupState.WAITING
    world.drain()


def test_decodes_need_no_named_runs(books):
    world = books()
    groups = [world.add(6, max_tokens=5) for _ in range(3)]
    world.step()
    decision = world.step()
    assert decision.decode_all
    assert decision.run == []
    assert world.log[-1] == {group.id: 1 for group in groups}
    world.drain()


def test_s07_a_long_prompt_never_silences_a_running_stream(books):
    world = books(budget=8, num_blocks=32, prefix_cache=False)
    stream = world.add(4, max_tokens=20)
    world.step()
    prompt = world.add(48)
    for _ in range(6):
        world.step()
        assert world.log[-1] == {stream.id: 1, prompt.id: 7}
    world.drain()


def test_without_chunks_a_prompt_waits_until_a_step_holds_it_whole_beside_the_decodes(books):
    world = books(budget=10, chunked=False, prefix_cache=False)
    stream = world.add(4, max_tokens=3)
    world.step()
    prompt = world.add(10)
    world.step()
    assert world.log[-1] == {stream.id: 1}
    world.step()
    world.step()
    assert world.log[-1] == {prompt.id: 10}
    world.drain()


def test_without_chunks_what_no_step_can_hold_is_cut_rather_than_starved(books):
    world = books(budget=10, chunked=False)
    world.add(14)
    world.drain()
    assert [sum(step.values()) for step in world.log[:2]] == [10, 4]


def test_s01_a_prompt_larger_than_the_pool_ends_and_the_next_one_runs(books):
    world = books(num_blocks=6)
    endless, small = world.add(30), world.add(4)
    world.drain()
    assert endless.sequences[0].finish_reason == "length"
    assert len(world.outputs[small.sequences[0]]) == 4
    assert world.outgrown == [endless]


def test_4b9_a_lone_group_that_outgrows_the_pool_is_left_unscheduled_not_preempted(books):
    world = books(num_blocks=4)
    group = world.add(10, max_tokens=40)
    world.drain()
    assert world.evictions == {"swap": 0, "recompute": 0}
    assert world.outgrown == [group]
    assert len(world.outputs[group.sequences[0]]) == 7  # 16 slots are full and the last token has none


def test_whole_prompts_are_admitted_against_what_started_prompts_still_need(books):
    world = books(num_blocks=10, budget=8, prefix_cache=False)
    first = world.add(30, max_tokens=2)  # 8 blocks over four steps
    second = world.add(12, max_tokens=2)  # 3 blocks: fits now, but not beside what the first still needs
    for _ in range(3):
        world.step()
        assert second.state is GroupState.WAITING
    world.drain()
    assert first.num_preemptions == second.num_preemptions == 0


def test_the_head_of_the_queue_is_not_skipped(books):
    world = books(num_blocks=8)
    world.add(20, max_tokens=3)
    large, small = world.add(20), world.add(4)
    world.step()
    assert large.state is small.state is GroupState.WAITING
    world.drain()


def test_the_watermark_binds_newcomers_but_not_a_lone_one(books):
    world = books(num_blocks=10, watermark=0.3)
    first, second = world.add(20), world.add(12)
    world.step()
    assert first.state is GroupState.RUNNING
    assert second.state is GroupState.WAITING  # 3 blocks of 5, but 3 must stay free
    world.drain()
    world = books(num_blocks=10, watermark=0.9)
    lone = world.add(30)
    world.step()
    assert lone.state is GroupState.RUNNING
    world.drain()


def test_museum_27_the_cap_counts_the_branches_a_request_will_have(books):
    world = books(max_seqs=4, num_blocks=64)
    fan, other = world.add(6, n=3), world.add(6, n=2)
    single = world.add(6)
    world.step()
    assert (fan.state, other.state, single.state) == (GroupState.RUNNING, GroupState.WAITING, GroupState.WAITING)
    while world.unfinished:
        world.step()
        assert sum(len(group.live) for group in world.running) <= 4
    world.drain()


def test_museum_20_a_returner_outranks_newcomers(books):
    world = books(num_blocks=8, prefix_cache=False)
    old = world.add(10, max_tokens=12)
    young = world.add(10, max_tokens=12)
    while not world.preempted:
        world.step()
    assert world.preempted == [young]
    newcomer = world.add(1, max_tokens=1)
    while young.state is GroupState.PREEMPTED:
        world.step()
        assert newcomer.state is GroupState.WAITING or young.state is GroupState.RUNNING
    world.drain()
    assert old.num_preemptions == 0


@pytest.mark.parametrize("swap", [False, True])
def test_p05_a_returner_comes_back_only_when_it_fits_whole(books, swap):
    world = books(num_blocks=10, host_blocks=10, budget=8, swap=swap, prefix_cache=False)
    sitter = world.add(17, max_tokens=20)
    returner = world.add(4, max_tokens=36, arrival=1.0)
    world.drain(limit=300)
    assert sitter.num_preemptions == 0
    assert 1 <= returner.num_preemptions <= 2
    assert world.step_count < 120


@pytest.mark.parametrize("swap", [False, True])
def test_p07_overload_progresses_oldest_first(books, swap):
    world = books(num_blocks=36, host_blocks=36, max_seqs=20, swap=swap)
    groups = [world.add([i] * 8, max_tokens=40, arrival=0.0) for i in range(20)]
    world.drain()
    assert all(len(world.outputs[group.sequences[0]]) == 40 for group in groups)
    assert groups[0].num_preemptions == 0
    assert max(group.num_preemptions for group in groups) <= 5
    assert [g.id for g in world.finished] == [g.id for g in groups]


def test_museum_21_two_requests_on_a_pool_for_one_do_not_play_ping_pong(books):
    world = books(num_blocks=10, prefix_cache=False)
    groups = [world.add(12, max_tokens=24), world.add(12, max_tokens=24)]
    world.drain()
    assert sum(group.num_preemptions for group in groups) <= 2


def test_p09_the_others_decode_in_the_very_step_that_evicts_and_in_the_next(books):
    world = books(num_blocks=16, budget=8, prefix_cache=False, watermark=0.0)
    streams = [world.add(7, max_tokens=30, arrival=0.0) for _ in range(4)]
    for _ in range(30):
        decision = world.step()
        if decision.preempt:
            break
    assert decision.preempt == [streams[3]]
    survivors = {group.id for group in streams[:3]}
    assert survivors <= set(world.log[-1])
    world.step()
    assert survivors <= set(world.log[-1])
    world.drain()


def test_p09_a_prompt_in_chunks_survives_a_preemption_around_it(books):
    world = books(num_blocks=16, budget=8, prefix_cache=False, watermark=0.0)
    streams = [world.add(7, max_tokens=40, arrival=0.0) for _ in range(3)]
    for _ in range(4):
        world.step()
    prompt = world.add(30, max_tokens=2)
    world.drain()
    assert all(len(world.outputs[group.sequences[0]]) == 40 for group in streams)
    assert len(world.outputs[prompt.sequences[0]]) == 2
    assert streams[0].num_preemptions == 0


@pytest.mark.parametrize(("host_blocks", "mode"), [(4, "recompute"), (80, "swap")])
def test_p10_gangs_larger_than_the_pool_finish_by_the_mode_there_is_room_for(books, host_blocks, mode):
    world = books(num_blocks=40, host_blocks=host_blocks, max_seqs=16, swap=True)
    groups = [world.add([i] * 10, max_tokens=20, n=6) for i in range(2)]
    world.drain()
    assert world.evictions[mode] > 0
    assert all(len(world.outputs[seq]) == 20 for group in groups for seq in group.sequences)


def test_p10_c_a_gang_that_can_never_fit_fails_alone(books):
    world = books(num_blocks=12, max_seqs=16)
    gang, after = world.add(10, max_tokens=20, n=6), world.add(8)
    world.drain()
    assert world.outgrown == [gang]
    assert len(world.outputs[after.sequences[0]]) == 4


def test_p10_admission_counts_the_branches_still_to_be_forked(books):
    world = books(num_blocks=12, max_seqs=16, watermark=0.0)
    first = world.add([1] * 24, max_tokens=3)  # 6 blocks
    gang = world.add([2] * 10, max_tokens=3, n=6)  # 3 blocks, and 5 more as soon as it forks
    world.step()
    assert first.state is GroupState.RUNNING
    assert gang.state is GroupState.WAITING
    world.drain()
    assert gang.num_preemptions == 0


@pytest.mark.parametrize("swap", [False, True])
def test_museum_25_swapping_without_host_blocks_recomputes(books, swap, caplog):
    world = books(num_blocks=24, host_blocks=0, max_seqs=8, swap=swap)
    groups = [world.add([i] * 10, max_tokens=16, n=3) for i in range(2)]
    world.drain()
    assert world.evictions["swap"] == 0
    assert world.evictions["recompute"] > 0
    assert all(len(world.outputs[seq]) == 16 for group in groups for seq in group.sequences)
    assert sum("no host room" in record.message for record in caplog.records) == swap


def test_museum_22_a_victim_that_frees_nothing_ends_the_search(books, monkeypatch):
    """Blocks that return only later must not make the victim loop evict everybody."""
    from paged_core.paging.scratch import PagedScratch

    world = books(num_blocks=12, prefix_cache=False, watermark=0.0)
    groups = [world.add(7, max_tokens=30, arrival=0.0) for _ in range(5)]
    world.step()

    def deferred(scratch, group):
        scratch._victims.add(group)
        scratch._decode_need = None
        return 0

    monkeypatch.setattr(PagedScratch, "give_back", deferred)
    while len(world.running) == 5:
        assert len(world.step().preempt) <= 1
    assert len(world.running) == 4
    monkeypatch.undo()
    world.drain()
    assert len(groups) == 5


def test_decodes_beyond_the_budget_run_oldest_first(books):
    world = books(budget=4, max_seqs=8, num_blocks=64)
    groups = [world.add([i], max_tokens=6) for i in range(6)]
    world.drain()
    assert all(sum(step.values()) <= 4 for step in world.log)
    assert [group.id for group in world.finished] == [group.id for group in groups]


def test_an_idle_view_decides_nothing(books):
    assert books().step().empty


@pytest.mark.parametrize(("budget", "steps"), [(64, 1), (8, 2)])
def test_blocks_that_a_started_gang_will_fork_into_are_not_given_away(books, budget, steps):
    """Whether the gang was admitted in this step or is finishing its prompt in it."""
    world = books(num_blocks=12, budget=budget, max_seqs=16, watermark=0.0, prefix_cache=False)
    gang = world.add(10, max_tokens=3, n=6)  # 3 blocks now, 5 more with its first tokens
    newcomer = world.add(24, max_tokens=2)  # 6 of the 9 blocks that look free
    for _ in range(steps):
        world.step()
        assert newcomer.state is GroupState.WAITING
    world.drain()
    assert gang.num_preemptions == newcomer.num_preemptions == 0


def test_under_pressure_age_counts_not_the_order_of_readmission(books):
    world = books(num_blocks=12, prefix_cache=False, watermark=0.0)
    young = world.add([1] * 12, max_tokens=30, arrival=5.0)
    old = world.add([2] * 12, max_tokens=30, arrival=1.0)
    world.step()
    assert world.running == [young, old]
    while not any(world.evictions.values()):
        world.step()
    assert world.preempted == [young]
    world.drain()


def test_under_pressure_the_chunk_of_an_old_prompt_leaves_budget_for_the_decodes_behind_it(books):
    world = books(num_blocks=14, budget=6, prefix_cache=False, watermark=0.0)
    streams = [world.add([i], max_tokens=30, arrival=5.0) for i in range(3)]
    world.step()
    prompt = world.add(40, max_tokens=2, arrival=0.0)
    pressed = 0
    while prompt.state is not GroupState.FINISHED:
        if world.step().preempt:
            pressed += 1
            computed = world.log[-1]
            assert computed[prompt.id] > 0
            assert all(group.id in computed for group in streams if group in world.running)
    assert pressed
    world.drain()


def test_a_returning_gang_of_last_tokens_is_not_cut_into_a_chunk_that_computes_nothing(books):
    """Two branches whose shared prompt is a hit lack one token each: with a budget of one they wait, not spin."""
    world = books(num_blocks=22, block_size=1, budget=2, max_seqs=4)
    stream = world.add([1, 1], max_tokens=8)
    gang = world.add([0], max_tokens=2, n=2)
    while not (gang.state is GroupState.RUNNING and gang.decoding and len(gang.live) == 2):
        world.step()
    for seq in gang.live:
        world.alloc.free(seq)
        world.rows.num_computed[seq.row] = 0
    world.running.remove(gang)
    world.preempted.append(gang)
    gang.state, gang.residency = GroupState.PREEMPTED, Residency.NONE
    world.step()
    assert gang.state is GroupState.PREEMPTED
    assert world.log[-1] == {stream.id: 1}
    world.drain()
