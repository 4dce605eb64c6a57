"""Law 16: a row's draws depend on its own logits, parameters, seed, branch and position, and on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_conformance.benches.examples import bounded
from paged_conformance.benches.sampler import EOS, VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires

pytestmark = layer("laws")

TOKEN = st.integers(0, VOCAB - 1)
OPTIONS = {
    "penalties": {
        "repetition_penalty": st.sampled_from([0.7, 1.4, 2.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.6, 2.0]),
        "presence_penalty": st.sampled_from([-0.5, 1.5]),
    },
    "logit_bias": {"logit_bias": st.dictionaries(TOKEN, st.sampled_from([-100, -1, 0.5, 2]), min_size=1, max_size=3)},
    "allowed_token_ids": {"allowed_token_ids": st.lists(TOKEN, min_size=4, max_size=12)},
    "bad_words": {"bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=2), min_size=1, max_size=3)},
    "min_p": {"min_p": st.sampled_from([0.05, 0.4])},
}


@st.composite
def rows(draw, capabilities):
    """A row with some of the parameters that the sampler declares; greedy where draws cannot be repeated."""
    options = {"top_k": st.sampled_from([1, 3, 20]), "top_p": st.sampled_from([0.3, 0.9]), "min_tokens": st.just(2)}
    for capability in sorted(capabilities & OPTIONS.keys()):
        options |= OPTIONS[capability]
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=4))
    values = {name: draw(options[name]) for name in sorted(chosen)}
    temperature = draw(st.sampled_from([0.0, 0.7, 1.5])) if "seed" in capabilities else 0.0
    tokens = st.lists(TOKEN, max_size=6)
    prompt, seed, branch = [draw(TOKEN), *draw(tokens)], draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 5))
    return Row(params(temperature=temperature, **values), seed, branch, prompt, draw(tokens))


def solo(candidate, row, logits):
    """Tokens of a row that has a sampler for itself; None = the row failed."""
    bench = SamplerBench(candidate)
    bench.start(0, row.copy())
    return [token_of(bench.sample({0: values}), 0) for values in logits]


def token_of(samples, draw):
    return None if draw in samples.failed else int(samples.tokens[draw])


def test_neighbours_and_their_order_change_nothing(sampler):
    """Case M11: penalties, seeds and filters of one row leaked into others when only some rows used them."""

    @bounded(sampler, 60)
    @given(st.data())
    def law(data):
        batch = data.draw(st.lists(rows(sampler.provider.capabilities), min_size=2, max_size=5))
        numbers = data.draw(st.permutations(range(len(batch))))
        steps = [[spread(10 * step + i, step=0.3) for i in range(len(batch))] for step in range(3)]
        bench = SamplerBench(sampler)
        for i, row in enumerate(batch):
            bench.start(numbers[i], row.copy())
        got = []
        for step, logits in enumerate(steps):
            order = list(range(len(batch)))[:: 1 if step % 2 else -1]
            samples = bench.sample({numbers[i]: logits[i] for i in order})
            got.append({i: token_of(samples, draw) for draw, i in enumerate(order)})
        for i, row in enumerate(batch):
            wanted = solo(sampler, row, [logits[i] for logits in steps])
            tokens = [step[i] for step in got]
            assert tokens == wanted, f"law 16: row {i} drew {tokens} among {len(batch)} rows, {wanted} alone: {row}"

    law()


def test_a_row_started_anew_goes_on_as_if_nothing_had_happened(sampler):
    """Law 16, preemption: the state rebuilt from prompt and output equals the state that was kept."""

    @bounded(sampler, 60)
    @given(st.data())
    def law(data):
        row = data.draw(rows(sampler.provider.capabilities))
        logits = [spread(seed, step=0.2) for seed in range(8)]
        kept = solo(sampler, row, logits)
        away = data.draw(st.integers(1, 7))
        bench = SamplerBench(sampler)
        mine = bench.start(1, row.copy())
        got = [token_of(bench.sample({1: values}), 0) for values in logits[:away]]
        bench.sampler.end(1)
        bench.start(4, mine)  # comes back to another table row
        got += [token_of(bench.sample({4: values}), 0) for values in logits[away:]]
        assert got == kept, f"law 16: started anew after {away} tokens the row drew {got}, uninterrupted {kept}: {row}"

    law()


def test_a_table_row_forgets_its_predecessor(sampler):
    bench = SamplerBench(sampler)
    values = {"temperature": 0, "min_tokens": 3}
    values |= {"repetition_penalty": 2.0, "presence_penalty": 2.0} if sampler.has("penalties") else {}
    values |= {"allowed_token_ids": [1, 2]} if sampler.has("allowed_token_ids") else {}
    values |= {"logprobs": 3} if sampler.has("logprobs") else {}
    bench.start(2, Row(params(**values), prompt=[5, 6], output=[8]))
    bench.run(2, spread(), 2)
    bench.sampler.end(2)
    bench.start(2, Row(params(temperature=0)))
    logits = spread(3)
    logits[EOS] = 9.0
    samples = bench.sample({2: logits})
    assert samples.tokens[0] == EOS, f"the new row drew {samples.tokens[0]} under its predecessor's parameters"
    assert not samples.logprobs, "the new row got the log-probabilities that its predecessor asked for"


def test_ending_an_unknown_row_leaves_everybody_alone(sampler):
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(temperature=0)))
    for unknown in (1, 63):
        bench.sampler.end(unknown)
        bench.sampler.end(unknown)
    assert bench.sample({0: spread()}).tokens[0] == spread().argmax()


@requires("seed")
def test_the_same_seed_repeats(sampler):
    row, logits = Row(params(), seed=11), [spread(i) for i in range(24)]
    assert solo(sampler, row, logits) == solo(sampler, row, logits), "law 16: one seed gave two answers"


@requires("seed")
@pytest.mark.parametrize(
    "differing",
    [
        {"seed": [0, 1, 2, 2**32, 2**63, 2**64 - 1]},
        {"branch": [0, 1, 2, 3, 4, 5]},
    ],
    ids=lambda value: next(iter(value)),
)
def test_seeds_and_branches_draw_apart(sampler, differing):
    """Case M01: n answers of one seeded request were all the same."""
    name, values = next(iter(differing.items()))
    level = np.zeros(VOCAB, dtype=np.float32)
    drawn = {value: solo(sampler, Row(params(), **{name: value}), [level] * 48) for value in values}
    for one, two in itertools.combinations(values, 2):
        same = sum(a == b for a, b in zip(drawn[one], drawn[two], strict=True))
        assert same < 16, f"{name} {one} and {two} agree in {same} of 48 draws from {VOCAB} equal tokens: {drawn[one]}"


@requires("seed")
def test_a_draw_depends_on_its_position_not_on_the_number_of_calls(sampler):
    level = np.zeros(VOCAB, dtype=np.float32)
    row = Row(params(), seed=5)
    whole = solo(sampler, row, [level] * 24)
    assert len(set(whole)) > 6, f"24 draws from {VOCAB} equal tokens are {whole}: the position changes nothing"
    late = Row(params(), seed=5, output=whole[:10])
    assert solo(sampler, late, [level] * 14) == whole[10:], "law 16: a draw depends on how often the sampler was called"


@requires("seed")
def test_many_draws_of_different_branches_come_from_one_call(sampler):
    """n > 1 right after the prompt: branches read equal logits in one batch and must not share a draw."""
    bench = SamplerBench(sampler)
    for branch in range(32):
        bench.start(branch, Row(params(), seed=9, branch=branch))
    level = np.zeros(VOCAB, dtype=np.float32)
    tokens = bench.sample(dict.fromkeys(range(32), level)).tokens.tolist()
    assert len(set(tokens)) > 8, f"32 branches of one seed drew {tokens}"
    alone = [solo(sampler, Row(params(), seed=9, branch=branch), [level])[0] for branch in range(32)]
    assert tokens == alone, f"law 16: branches drew {tokens} together, {alone} alone"
