"""A survey tells every block's state, who holds it and who waits; what an allocator does not tell is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from paged_core.api.allocator import Allocator
from paged_core.api.params import SamplingParams
from paged_core.engine.survey import CACHED, Focus

PROMPT = list(range(1, 14))  # 13 tokens: three blocks of 4 are full, one token is in the fourth
ONE = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def refs_of(blocks):
    return np.frombuffer(blocks, np.uint8) & (CACHED - 1)


def cached_of(blocks):
    return np.frombuffer(blocks, np.uint8) >= CACHED


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
def test_the_bytes_agree_with_the_counts_at_every_step(shadow, alloc):
    engine = shadow(alloc=alloc, num_blocks=14, preempt="preempt_swap")
    branches = SamplingParams(n=3, temperature=1, max_tokens=9, ignore_eos=True)
    for i in range(4):
        engine.add_request(f"r{i}", PROMPT, branches if i % 2 else ONE)
    seen = Counter()
    while engine.has_unfinished:
        engine.step()
        survey, stats = engine.survey(), engine.stats().blocks
        refs, cached = refs_of(survey.blocks), cached_of(survey.blocks)
        assert survey.exact
        assert len(refs) == stats.total == 14
        assert int((refs == 0).sum()) == stats.free
        assert int((refs > 1).sum()) == stats.shared
        assert int(((refs == 0) & cached).sum()) == stats.cached_free
        assert len(survey.host) - int((refs_of(survey.host) > 0).sum()) == stats.host_free
        swapped = stats.host_total - stats.host_free
        seen += Counter(shared=stats.shared, swapped=swapped, cached=stats.cached_free)
    assert min(seen[what] for what in ("shared", "swapped", "cached")) > 0, "a state that was to be surveyed never was"


def test_a_block_tells_its_holders_and_how_deep_it_lies_in_their_prefixes(shadow):
    engine = shadow(block_size=4)
    engine.add_request("first", PROMPT, ONE)
    engine.step()
    engine.add_request("second", PROMPT, ONE)
    engine.step()
    (shared, *_) = np.flatnonzero(refs_of(engine.survey().blocks) == 2).tolist()
    survey = engine.survey(Focus(block=shared))
    depths = {(holder.request, holder.branch): holder.depth for holder in survey.holders}
    assert set(depths) == {("first", 0), ("second", 0)}
    assert len(set(depths.values())) == 1
    assert all(holder.num_tokens == 4 for holder in survey.holders)
    assert survey.held == np.flatnonzero(refs_of(survey.blocks)).tolist(), "both of them hold all that is in use"
    assert engine.survey(Focus(block=63)).holders == []
    assert engine.survey(Focus(block=10**9)).holders == []


def test_the_last_block_of_a_request_holds_what_is_left(shadow):
    engine = shadow(block_size=4)
    engine.add_request("only", PROMPT, ONE)
    engine.step()
    filled = Counter()
    for block in engine.survey(Focus(request="only")).held:
        (holder,) = engine.survey(Focus(block=block)).holders
        filled[holder.depth] = holder.num_tokens
    assert dict(filled) == {0: 4, 1: 4, 2: 4, 3: 1}


def test_a_request_tells_its_queue_its_progress_and_its_blocks(shadow):
    engine = shadow(max_num_seqs=1)
    engine.add_request("runs", PROMPT, ONE)
    engine.add_request("waits", PROMPT, ONE)
    engine.step()
    survey = engine.survey(Focus(request="runs"))
    ((runs,), (waits,)) = survey.running, survey.waiting
    assert (runs.id, runs.num_prompt, runs.num_tokens, runs.num_computed) == ("runs", 13, 14, 13)
    assert (runs.residency, runs.num_blocks, runs.num_branches) == ("device", 4, 1)
    assert (waits.id, waits.num_computed, waits.num_blocks) == ("waits", 0, 0)
    assert len(survey.held) == 4
    assert survey.preempted == []


def test_a_preempted_request_is_told_with_its_place_and_its_count(shadow):
    engine = shadow(num_blocks=8, preempt="preempt_swap", prefix_cache=False)
    for i in range(2):
        engine.add_request(f"r{i}", PROMPT, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    while not (away := engine.survey().preempted):
        engine.step()
    assert [(line.residency, line.num_preemptions, line.num_blocks) for line in away] == [("host", 1, 0)]


def test_without_marks_the_tables_are_counted(shadow, monkeypatch):
    engine = shadow(prefix_cache=False, num_blocks=14, preempt="preempt_swap")
    for i in range(4):
        engine.add_request(f"r{i}", PROMPT, SamplingParams(n=1 + i % 2, temperature=1, max_tokens=9, ignore_eos=True))
    swapped = 0
    while engine.has_unfinished:
        engine.step()
        exact = engine.survey()
        with monkeypatch.context() as patch:
            patch.setattr(type(engine._ledger.allocator), "marks", Allocator.marks)
            counted = engine.survey()
        assert not counted.exact
        assert refs_of(counted.blocks).tolist() == refs_of(exact.blocks).tolist()
        assert sum(counted.host) == sum(byte > 0 for byte in exact.host)
        swapped += any(counted.host)
    assert swapped, "nothing was swapped"


def test_a_survey_is_a_copy(shadow):
    engine = shadow()
    engine.add_request("r", PROMPT, ONE)
    engine.step()
    survey = engine.survey(Focus(request="r"))
    before = (survey.blocks, list(survey.held), list(survey.running))
    while engine.has_unfinished:
        engine.step()
    assert before == (survey.blocks, survey.held, survey.running)
    assert set(refs_of(engine.survey().blocks).tolist()) == {0}
