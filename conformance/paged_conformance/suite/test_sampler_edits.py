"""What changes a row's logits before anything is chosen, and one proof of effect for every declared capability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_conformance.benches.examples import bounded
from paged_conformance.benches.sampler import EOS, MAX_ROWS, VOCAB, Row, SamplerBench, params, spread
from paged_conformance.marks import layer, requires
from paged_conformance.oracles.sampler import distribution, edited

pytestmark = layer("behaviour")

TOKEN = st.integers(0, VOCAB - 1)
TOKENS = st.lists(TOKEN, max_size=8)
CLOSE = 1e-3  # edited logits that lie closer than this may be taken for equals


def greedy_token(sampler, row, logits):
    bench = SamplerBench(sampler)
    bench.start(0, row.copy())
    return int(bench.sample({0: logits}).tokens[0])


def check_edits(sampler, bench, row, logits):
    """The greedy token must be the best of the oracle's edited logits, or one as good."""
    wanted = edited(logits, row.params, row.prompt, row.output, (EOS,))
    prompt, output = list(row.prompt), list(row.output)
    token = int(bench.sample({0: logits}).tokens[0])
    assert wanted[token] > wanted.max() - CLOSE, (
        f"drew {token}, whose edited logit is {wanted[token]:.3f}; the best is {int(wanted.argmax())} with "
        f"{wanted.max():.3f}. Prompt {prompt}, output {output}, logits {logits.tolist()}, {row.params}"
    )


def obey_the_oracle(sampler, options):
    """Hypothesis: greedy rows with these parameters take the oracle's token, step after step."""

    @bounded(sampler, 80)
    @given(st.data())
    def law(data):
        values = {name: data.draw(option) for name, option in options.items()}
        bench = SamplerBench(sampler)
        prompt, output = [3, *data.draw(TOKENS)], data.draw(TOKENS)
        row = bench.start(0, Row(params(temperature=0, **values), prompt=prompt, output=output))
        for seed in range(4):
            check_edits(sampler, bench, row, spread(seed, step=0.25))

    law()


@requires("penalties")
@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_each_penalty_counts_what_the_oracle_counts(sampler, name):
    """Repetition looks at prompt and output, frequency and presence at the output alone."""
    values = [0.5, 1.0, 1.3, 3.0] if name == "repetition_penalty" else [-2.0, -0.4, 0.6, 2.0]
    obey_the_oracle(sampler, {name: st.sampled_from(values)})


@requires("penalties", "logit_bias", "allowed_token_ids", "bad_words")
def test_all_edits_together_happen_in_the_contracts_order(sampler):
    obey_the_oracle(
        sampler,
        {
            "repetition_penalty": st.sampled_from([1.0, 1.5]),
            "frequency_penalty": st.sampled_from([0.0, 0.7]),
            "presence_penalty": st.sampled_from([0.0, -1.0]),
            "logit_bias": st.none() | st.dictionaries(TOKEN, st.sampled_from([-100, -2, 1.5]), max_size=4),
            "allowed_token_ids": st.none() | st.lists(TOKEN, min_size=8, max_size=20, unique=True),
            "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=3),
            "min_tokens": st.integers(0, 10),
        },
    )


@requires("penalties")
@pytest.mark.parametrize("where", ["prompt", "output"])
def test_prompt_tokens_suffer_from_repetition_only(sampler, where):
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[5, 6]] = 2.0, 1.9
    for name, value in (("repetition_penalty", 1.5), ("frequency_penalty", 1.0), ("presence_penalty", 1.0)):
        row = Row(params(temperature=0, **{name: value}), prompt=[0])
        getattr(row, where).append(5)
        suffers = where == "output" or name == "repetition_penalty"
        token = greedy_token(sampler, row, logits)
        assert token == (6 if suffers else 5), f"{name}={value} with token 5 in the {where}: drew {token}"


@requires("penalties")
def test_a_penalty_stays_with_its_row_when_the_batch_is_reordered(sampler):
    """Case M11: a penalty that sits at a place of the batch hits whoever stands there next."""
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[5, 6]] = 2.0, 1.9
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [1], [2, 1]):
        bench = SamplerBench(sampler)
        for number in range(3):
            bench.start(number, Row(params(temperature=0, presence_penalty=float(number == 1)), output=[5]))
        tokens = bench.sample(dict.fromkeys(order, logits)).tokens.tolist()
        wanted = [6 if number == 1 else 5 for number in order]
        assert tokens == wanted, f"rows {order}, of which only 1 is penalised, drew {tokens} instead of {wanted}"


@requires("logit_bias")
def test_logit_bias_is_added(sampler):
    obey_the_oracle(
        sampler, {"logit_bias": st.dictionaries(TOKEN, st.sampled_from([-100, -1.5, 0.5, 100]), max_size=5)}
    )


@requires("logit_bias")
def test_logit_bias_takes_the_best_token_away_and_any_token_up(sampler):
    """Case M06."""
    logits = spread()
    best, worst = int(logits.argmax()), int(logits.argmin())
    assert greedy_token(sampler, Row(params(temperature=0, logit_bias={best: -100})), logits) != best
    assert greedy_token(sampler, Row(params(temperature=0, logit_bias={worst: 100})), logits) == worst


@requires("allowed_token_ids")
@pytest.mark.parametrize("temperature", [0, 2.0])
def test_only_allowed_tokens_are_drawn(sampler, temperature):
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(temperature=temperature, allowed_token_ids=[4, 9, 30]), seed=1))
    drawn = {int(bench.sample({0: spread(seed)}).tokens[0]) for seed in range(40)}
    assert drawn == {4, 9, 30}, f"allowed tokens 4, 9, 30; drawn from 40 different rows of logits: {sorted(drawn)}"


@requires("bad_words")
def test_a_bad_word_of_one_token_is_never_drawn(sampler):
    logits = spread()
    first, second = np.argsort(-logits)[:2].tolist()
    assert greedy_token(sampler, Row(params([[first]], temperature=0)), logits) == second


@requires("bad_words")
def test_the_last_token_of_a_longer_bad_word_is_barred_after_the_others_only(sampler):
    """The word is looked for in the output; what stands in the prompt does not count."""
    logits = spread()
    first, second = np.argsort(-logits)[:2].tolist()
    words = params([[10, 11, first]], temperature=0)
    after = {(): first, (10,): first, (11,): first, (11, 10): first, (10, 11): second, (3, 10, 11): second}
    for output, wanted in after.items():
        token = greedy_token(sampler, Row(words, output=list(output)), logits)
        assert token == wanted, f"bad word [10, 11, {first}] after output {list(output)}: drew {token}, not {wanted}"
    assert greedy_token(sampler, Row(words, prompt=[10, 11]), logits) == first, "a bad word began in the prompt"


@requires("bad_words")
def test_a_bad_word_is_noticed_in_tokens_that_the_sampler_drew_itself(sampler):
    bench = SamplerBench(sampler)
    bench.start(0, Row(params([[10, 11, 12]], temperature=0)))
    drawn = []
    for wish in (10, 11, 12):
        logits = np.zeros(VOCAB, dtype=np.float32)
        logits[[wish, 20]] = 3.0, 2.0
        drawn += bench.run(0, logits, 1)
    assert drawn == [10, 11, 20], f"the model wished for the bad word 10, 11, 12; drawn {drawn}"


@pytest.mark.parametrize("minimum", [1, 2, 5])
@pytest.mark.parametrize("ends", ["eos", "stop_token_ids"])
def test_no_end_before_min_tokens_and_any_end_after(sampler, minimum, ends):
    """Cases M14 and M16: the end comes as token number min_tokens + 1, no sooner and no later."""
    logits = np.zeros(VOCAB, dtype=np.float32)
    end = EOS if ends == "eos" else 21
    logits[[end, 3]] = 5.0, 4.0
    stops = {"stop_token_ids": [21]} if ends == "stop_token_ids" else {}
    bench = SamplerBench(sampler)
    bench.start(0, Row(params(temperature=0, min_tokens=minimum, **stops), prompt=[1, 2, 3]))
    drawn = bench.run(0, logits, minimum + 2)
    assert drawn == [3] * minimum + [end] * 2, f"min_tokens={minimum}, end {end} is the best token throughout: {drawn}"
    assert greedy_token(sampler, Row(params(temperature=0, **stops)), logits) == end, "an end was barred without reason"


EFFECTS = {
    "penalties": {"repetition_penalty": 100.0},
    "logit_bias": {"logit_bias": {30: 100}},
    "bad_words": {"bad_words": [[token] for token in range(16)]},
    "allowed_token_ids": {"allowed_token_ids": [29, 30]},
    "min_p": {"min_p": 1.0},
}


@pytest.mark.parametrize("capability", [pytest.param(name, marks=requires(name)) for name in EFFECTS])
def test_a_declared_capability_has_an_effect(sampler, capability):
    """Case G06: a backend accepted penalties and ignored them. Tokens that all but vanish must no longer be drawn."""
    logits = np.linspace(8.0, 7.0, VOCAB).astype(np.float32)
    prompt, changed = list(range(24)), params(**EFFECTS[capability])
    gone = distribution(edited(logits, changed, prompt, [0], (EOS,)), changed) < 1e-3
    counts = []
    for sampling in (params(), changed):
        bench = SamplerBench(sampler)
        for number in range(MAX_ROWS):
            bench.start(number, Row(sampling, seed=number, prompt=list(prompt), output=[0]))
        counts.append(int(gone[bench.sample(dict.fromkeys(range(MAX_ROWS), logits)).tokens].sum()))
    barred = f"{EFFECTS[capability]} bars {int(gone.sum())} of {VOCAB} tokens"
    assert counts[0] >= 10, f"{barred}; a plain sampler must draw them often, drew {counts[0]} in {MAX_ROWS}"
    assert counts[1] <= 3, f"{barred}, yet {counts[1]} of {MAX_ROWS} draws took one"
