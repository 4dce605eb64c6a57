"""PrefillFirstScheduler: what its README says, a promise a test; and it decides as a restatement of the paper does."""

from __future__ import annotations

import pytest
from paged_conformance.benches.traffic import Ask, play, random_asks
from paged_sched_prefill_first import PrefillFirstProvider, PrefillFirstSettings
from pydantic import ValidationError

from paged_core.api.scheduler import SchedulerNeed
from paged_core.testing.build import EngineShape, default_plugins

SIZE = 4


def serve(asks, **sizes):
    shape = EngineShape(**{"sched": "sched_prefill_first", "chunked_prefill": False, "prefix_cache": False, **sizes})
    done = play(default_plugins(), shape, asks)
    done.assert_sound()
    assert not done.recorder.breaches
    return done.recorder.notes, done


def prompt(number, length):
    return tuple(1 + (7 * number + i * (number + 1)) % 90 for i in range(length))


def test_a_step_is_prompts_or_decodes():
    notes, _ = serve(random_asks(3, 300, 0.2), num_blocks=200)
    mixed = [note for note in notes if note.admitted and set(note.admitted) != set(note.tokens)]
    assert not mixed
    assert sum(bool(note.admitted) for note in notes) > 20


def test_streams_stand_still_while_prompts_are_computed():
    asks = [Ask("stream", prompt(0, 4), 8), Ask("new", prompt(1, 20), 2, at=3), Ask("other", prompt(2, 9), 2, at=3)]
    notes, _ = serve(asks)
    assert [note.tokens for note in notes[2:5]] == [{"stream": 1}, {"new": 20, "other": 9}, {
        "stream": 1, "new": 1, "other": 1,
    }]  # fmt: skip


@pytest.mark.parametrize("chunked", [False, True])
def test_prompts_are_whole_whatever_the_setting(chunked):
    asks = [Ask("a", prompt(1, 12), 2), Ask("b", prompt(2, 12), 2)]
    notes, _ = serve(asks, token_budget=20, chunked_prefill=chunked)
    assert [note.tokens for note in notes[:2]] == [{"a": 12}, {"b": 12}]


def test_what_no_step_can_hold_is_computed_in_several_steps_of_prompts():
    asks = [Ask("stream", prompt(0, 4), 9), Ask("long", prompt(1, 40), 2, at=2)]
    notes, _ = serve(asks, token_budget=16, chunked_prefill=True)
    assert [note.tokens for note in notes[2:5]] == [{"long": 16}, {"long": 16}, {"long": 8}]


def test_nobody_new_enters_while_a_group_is_swapped_out():
    asks = [Ask("old", prompt(0, 10), 30), Ask("young", prompt(1, 10), 30, at=1), Ask("new", prompt(2, 1), 1, at=12)]
    notes, done = serve(asks, num_blocks=10, num_host_blocks=20, preempt="preempt_swap")
    assert done.engine.stats().preemptions["swap"] > 0
    away = False
    for note in notes:
        assert not (away and note.admitted), f"step {note.step}: {note.admitted} enters while young is away"
        away = (away or bool(note.preempt)) and not note.resume
    assert [note.admitted for note in notes if note.admitted][-1] == ("new",)


def test_who_must_be_computed_again_returns_as_a_prompt_before_who_waits():
    asks = [Ask("old", prompt(0, 10), 30), Ask("young", prompt(1, 10), 30, at=1), Ask("new", prompt(2, 9), 9, at=12)]
    notes, _ = serve(asks, num_blocks=10, preempt="preempt_recompute")
    back = next(note for note in notes if note.resume)
    assert back.resume == ("young",)
    assert back.tokens["young"] > 10  # with what it had been given
    assert set(back.tokens) == {"young", *back.admitted}
    (entered,) = [note.step for note in notes if "new" in note.admitted]
    assert entered >= back.step


def test_the_watermark_binds_newcomers_but_not_a_lone_one():
    need = SchedulerNeed(64, 8, 64, SIZE, 10)
    scheduler = PrefillFirstProvider().create(need, PrefillFirstSettings(watermark=0.9), None)
    shape = EngineShape(sched="sched_prefill_first", num_blocks=10, prefix_cache=False)
    asks = [Ask("a", prompt(0, 20), 3), Ask("b", prompt(1, 4), 3)]
    done = play(default_plugins(), shape, asks, wrap=lambda _: scheduler)
    done.assert_sound()
    assert [note.admitted for note in done.recorder.notes if note.admitted] == [("a",), ("b",)]
    with pytest.raises(ValidationError):
        PrefillFirstSettings(watermark=1.0)


class Paper:
    """Section 4.5 over again, on counts: vLLM's scheduler of 2023 with exact needs of blocks, no prefix cache."""

    def __init__(self, num_blocks, budget, max_seqs, *, swap):
        self.free, self.budget, self.max_seqs, self.swap = num_blocks, budget, max_seqs, swap
        self.waiting, self.running, self.away = [], [], []

    def step(self):
        """(tokens by id, who leaves, who returns)"""
        if not (self.swap and self.away) and (prompts := self._prompts()):
            return prompts
        return self._decodes()

    def _prompts(self):
        tokens, back, left, line = {}, [], self.budget, [*self.away, *self.waiting]
        for one in line:
            need = blocks(one["tokens"])
            if one["tokens"] > left or len(self.running) == self.max_seqs or need > self.free:
                break
            (self.away if one in self.away else self.waiting).remove(one)
            back += [one["id"]] * bool(one["out"])
            self.running.append(one)
            self.free -= need
            left -= one["tokens"]
            tokens[one["id"]] = one["tokens"]
        return (tokens, [], back) if tokens else None

    def _decodes(self):
        line, ran, left, back = sorted(self.running, key=lambda one: one["at"]), [], [], []
        while line:
            one = line.pop(0)
            while need_one(one) > self.free and line:
                left.append(line.pop())
                self.free += blocks(left[-1]["tokens"] - 1)
            if need_one(one) <= self.free:  # else it is the newest and waits
                self.free -= need_one(one)
                ran.append(one)
        self.running = [one for one in self.running if one not in left]
        self.away = sorted([*self.away, *left], key=lambda one: one["at"])
        all_ran = len(ran) == len(self.running)
        while self.swap and self.away and all_ran and not left and len(self.running) < self.max_seqs:
            need = blocks(self.away[0]["tokens"])
            if need + 1 > self.free:
                break
            self.free -= need
            back.append(self.away.pop(0))
            self.running.append(back[-1])
            ran.append(back[-1])
        return {one["id"]: 1 for one in ran}, [one["id"] for one in left], [one["id"] for one in back]

    def drawn(self, ids):
        """A token for everybody who ran; who has all of its tokens ends."""
        for one in [one for one in self.running if one["id"] in ids]:
            one["tokens"] += 1
            one["out"] += 1
            if one["out"] == one["want"]:
                self.running.remove(one)
                self.free += blocks(one["tokens"] - 1)


def blocks(tokens):
    return -(-tokens // SIZE)


def need_one(one):
    """Blocks for the token that is next to be computed."""
    return int((one["tokens"] - 1) % SIZE == 0)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_it_decides_as_a_restatement_of_the_paper_does(swap, seed):
    """Every decision of random traffic on a pool for four, the watermark below one block."""
    asks = random_asks(seed, 250, 0.35)
    sizes = {"num_blocks": 30, "num_host_blocks": 400, "max_num_seqs": 6, "token_budget": 64}
    notes, done = serve(asks, preempt="preempt_swap" if swap else "preempt_recompute", **sizes)
    assert done.engine.stats().preemptions["swap" if swap else "recompute"] > 3
    paper, coming, when = Paper(30, 64, 6, swap=swap), list(asks), iter(notes)
    for step in range(done.num_steps):
        while coming and coming[0].at <= step:
            ask = coming.pop(0)
            arrival = {"id": ask.id, "at": len(asks) - len(coming), "tokens": len(ask.prompt), "out": 0}
            paper.waiting.append({**arrival, "want": ask.num_tokens})
        if not (paper.waiting or paper.running or paper.away):
            continue
        note = next(when)
        tokens, left, back = paper.step()
        assert (note.tokens, sorted(note.preempt), sorted(note.resume)) == (tokens, sorted(left), sorted(back)), step
        paper.drawn(set(tokens))
    assert next(when, None) is None
