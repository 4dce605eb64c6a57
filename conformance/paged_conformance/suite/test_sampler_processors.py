"""Logits processors of a request: forked for every row, told of its tokens, applied first, and failing alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from paged_conformance.benches.sampler import VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires
from paged_core.api.logits import LogitsProcessor

pytestmark = layer("behaviour")


class _Follow(LogitsProcessor):
    """Forces the token after the last one of its branch, `step` further; says what it was given."""

    def __init__(self, step: int = 1) -> None:
        self.step = step
        self.heard: list[int] = []

    def apply(self, logits):
        assert logits.dtype == torch.float32
        assert logits.shape == (VOCAB,)
        wanted = (self.heard[-1] if self.heard else 0) + self.step
        logits[torch.arange(VOCAB, device=logits.device) != wanted % VOCAB] = -torch.inf

    def accept(self, tokens):
        assert all(type(token) is int for token in tokens)
        self.heard += tokens


class _Train(_Follow):
    """Two more tokens follow each draw without one."""

    def forced(self):
        return [self.heard[-1] + 1, self.heard[-1] + 2]


class _Scale(LogitsProcessor):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, logits):
        logits *= self.factor


class _Shift(LogitsProcessor):
    """Adds to one token, for all its rows together; counts the rows of each call."""

    calls: ClassVar[list[int]] = []

    def __init__(self, token: int, value: float) -> None:
        self.token, self.value = token, value

    def apply(self, logits):
        logits[self.token] += self.value

    @classmethod
    def apply_rows(cls, processors, logits, rows):
        cls.calls.append(len(rows))
        tokens = torch.tensor([each.token for each in processors], device=logits.device)
        values = torch.tensor([each.value for each in processors], device=logits.device)
        logits[torch.tensor(list(rows), device=logits.device), tokens] += values


class _Stumble(LogitsProcessor):
    """Spoils its row and then raises, at the named moment."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def _pass(self, moment):
        if moment == self.moment:
            raise ValueError("stumbled\nover two lines")

    def fork(self):
        self._pass("fork")
        return _Stumble(self.moment)

    def apply(self, logits):
        if self.moment == "NaN":
            logits[3] = torch.nan
        logits *= -1
        self._pass("apply")

    def accept(self, tokens):
        self._pass("restart" if len(tokens) > 1 else "accept")


def start(bench, number, *processors, row=None, **values):
    sampling = params(**{"temperature": 0, "logits_processors": list(processors), **values})
    return bench.start(number, Row(sampling) if row is None else row(sampling))


@requires("logits_processors")
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_processor_is_told_of_every_token_of_its_own_row(sampler, temperature):
    """All rows use one template; a shared state would make them follow one another."""
    bench, template = SamplerBench(sampler), _Follow()
    for number in range(4):
        start(bench, number, template, temperature=temperature)
    drawn = [bench.sample({n: spread(n) for n in numbers}).tokens.tolist() for numbers in ([0, 1], [1, 0, 2], [3, 1])]
    assert drawn == [[1, 1], [2, 2, 1], [1, 3]], f"each row counts 1, 2, 3 for itself; drawn {drawn}"
    assert template.heard == [], "the template in the parameters was changed"


@requires("logits_processors")
def test_a_row_started_anew_tells_a_new_fork_the_whole_output(sampler):
    bench = SamplerBench(sampler)
    row = start(bench, 0, _Follow())
    bench.run(0, spread(), 3)
    bench.start(0, row.copy())
    assert bench.run(0, spread(), 2) == [4, 5], "after a restart with output 1, 2, 3 the row goes on with 4"
    row.output[:] = [9]
    bench.start(0, row)
    assert bench.run(0, spread(), 1) == [10], "after a restart with another output, [9], 10 follows"
    bench.sampler.end(0)
    start(bench, 0)
    assert bench.run(0, spread(), 1) == [int(spread().argmax())], "a processor outlived its row"


@requires("logits_processors")
def test_forced_tokens_are_taken_where_the_parameters_allow_it_and_told_to_the_processor(sampler):
    """To take none is allowed: they are then drawn like all others."""
    bench = SamplerBench(sampler)
    start(bench, 0, _Train())
    start(bench, 1, _Train(), logprobs=0)
    start(bench, 2, _Train(), bad_words=[[7, 7]])
    samples = bench.sample({0: spread(), 1: spread(), 2: spread()})
    assert samples.tokens.tolist() == [1, 1, 1]
    assert samples.forced in ({}, {0: [2, 3]}), f"forced {samples.forced}, where only draw 0 may: [2, 3]"
    after = bench.sample({0: spread(), 1: spread()}).tokens.tolist()
    assert after == [4 if samples.forced else 2, 2], f"what follows is {after}: forced tokens were not accepted"


@requires("logits_processors")
def test_processors_act_in_the_order_given(sampler):
    """2 * (x + 30) and 2 * x + 30 differ; so do rows with the same classes the other way round, side by side."""
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[5] = 20.0
    bench = SamplerBench(sampler)
    start(bench, 0, _Scale(2.0), _Shift(6, 30.0))
    start(bench, 1, _Shift(6, 30.0), _Scale(2.0))
    start(bench, 2, _Shift(6, 30.0), _Scale(-1.0))
    start(bench, 3, _Scale(-1.0), _Shift(6, 30.0), _Shift(9, 31.0))
    wanted = [5, 6, 0, 9]
    tokens = bench.sample(dict.fromkeys(range(4), logits)).tokens.tolist()
    assert tokens == wanted, f"drew {tokens} instead of {wanted}"


@requires("logits_processors")
def test_rows_of_one_class_are_handed_over_together_and_nobody_else_changes(sampler):
    bench = SamplerBench(sampler)
    for number in range(6):
        start(bench, number, *([_Shift(number, 50.0)] if number % 2 else []))
    _Shift.calls.clear()
    tokens = bench.sample({n: spread(n) for n in range(6)}).tokens.tolist()
    wanted = [number if number % 2 else int(spread(number).argmax()) for number in range(6)]
    assert tokens == wanted, f"rows 1, 3 and 5 push their own number up; drawn {tokens}"
    assert _Shift.calls == [3], f"apply_rows was to be called once for three rows; it was called for {_Shift.calls}"


@requires("logits_processors", "logit_bias", "penalties", "allowed_token_ids")
def test_processors_come_before_all_other_edits(sampler):
    """A scale of 0 wipes the model's logits, not the bias, the penalties and the masks that follow."""
    for values, wanted in (
        ({"logit_bias": {11: 1.0}}, 11),
        ({"allowed_token_ids": [13, 14]}, 13),
        ({"presence_penalty": 1.0}, 1),
    ):
        bench = SamplerBench(sampler)
        start(bench, 0, _Scale(0.0), row=lambda sampling: Row(sampling, output=[0]), **values)
        assert bench.run(0, spread(), 1) == [wanted], f"a scale of 0, then {values}: {wanted} is the first best token"


@requires("logits_processors", "candidates")
def test_candidates_are_taken_after_processors(sampler):
    bench = SamplerBench(sampler)
    start(bench, 0, _Follow(7))
    found = bench.sample({0: spread()}, {0: 4}).candidates[0]
    assert found.token_ids.tolist() == [[7]], f"the processor leaves token 7 alone; candidates {found.token_ids}"


@requires("logits_processors", "logprobs")
def test_log_probabilities_are_taken_before_processors(sampler):
    bench, logits = SamplerBench(sampler), spread()
    start(bench, 0, _Shift(4, 50.0), logprobs=1)
    found = bench.sample({0: logits}).logprobs[0]
    wanted = logits[4] - np.log(np.exp(logits).sum())
    assert found.chosen[0] == pytest.approx(wanted, abs=1e-3), "the log-probability of token 4 before it was pushed"
    assert found.token_ids[0, 0] == logits.argmax()


@requires("logits_processors")
@pytest.mark.parametrize("moment", ["fork", "apply", "accept", "restart", "NaN"])
def test_a_processor_that_raises_fails_its_own_draw_and_names_its_class(sampler, moment):
    """Neighbours of its own class, of another class and without any keep their tokens."""
    bench, logits = SamplerBench(sampler), spread()
    for number in range(5):
        mates = {1: [_Stumble("never")], 2: [_Stumble(moment)], 3: [_Shift(8, 50.0)]}.get(number, [])
        start(bench, number, *mates, row=lambda sampling: Row(sampling, output=[1, 2]))
    samples = bench.sample(dict.fromkeys(range(5), logits))
    assert set(samples.failed) == {2}, f"the processor of draw 2 fails at {moment}; failed: {samples.failed}"
    reason = samples.failed[2]
    assert "Stumble" in reason and "\n" not in reason, f"one line that names the class, not {reason!r}"  # noqa: PT018
    best, worst = int(logits.argmax()), int(logits.argmin())
    assert samples.tokens.tolist() == [best, worst, 0, 8, best], f"drew {samples.tokens.tolist()}"


@requires("logits_processors")
def test_a_processor_that_masks_everything_fails_its_own_draw(sampler):
    bench = SamplerBench(sampler)
    start(bench, 0)
    start(bench, 1, _Follow(3), _Follow(4))
    samples = bench.sample({0: spread(), 1: spread()})
    assert set(samples.failed) == {1}, f"two processors leave row 1 no token; failed: {samples.failed}"


@requires("logits_processors")
def test_a_row_with_a_processor_fails_alone_among_rows_whose_logits_are_broken(sampler):
    bench = SamplerBench(sampler)
    start(bench, 0, _Follow())
    start(bench, 1, _Follow())
    broken = spread()
    broken[4] = np.nan
    assert set(bench.sample({0: broken, 1: spread()}).failed) == {0}
    assert bench.run(1, spread(), 1) == [2], "row 1 drew 1 beside a broken row, then 2"
