"""Law 15 over ranks: what several processes compute together is what one computes, whatever the engine does."""

from __future__ import annotations

import itertools
import sys

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.assemble import load_settings
from paged_core.errors import RequestError
from paged_core.plugins import bootstrap
from paged_core.testing.lasting import Lender
from paged_core.testing.seams import PreemptNow
from paged_core.testing.tiny import write_tiny_llama

pytestmark = pytest.mark.slow

PROMPTS = ["a", "the other one", "in the beginning there was nothing and", "xyz" * 9, "the other one again"]
GREEDY = {"temperature": 0, "max_tokens": 14, "ignore_eos": True}
SHAPES = {
    "four heads": {},  # on two KV heads, which four ranks hold twice each
    "six heads": {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96, "intermediate_size": 100},
}
GROUPS = [
    ("four heads", 2, "attn_cpu", 1, "board"),
    ("four heads", 4, "attn_torch", 16, "board"),
    ("six heads", 3, "attn_torch", 4, "gloo"),
    ("six heads", 3, "attn_cpu", 16, "board"),
]
FIXED = {"max_num_seqs": 8, "num_blocks": 512, "host_memory": "4MiB", "threads": 1, "seed": 1, "audit": True}


LADDER = """
from paged_core.api.logits import LogitsProcessor


class Ladder(LogitsProcessor):
    '''Prefers the token after the last one.'''

    last = 7

    def accept(self, tokens):
        self.last = tokens[-1]

    def apply(self, logits):
        logits[(self.last + 1) % 250] += 500.0
"""


class Group:
    """One model over ranks, and in one process, each behind engines with any settings."""

    def __init__(self, folder, size, attn, block_size, meets):
        self.block_size = block_size
        plugins = {"exec_tp": {"shared_memory": meets == "board"}}
        self.fixed = {"model": str(folder), "attn": attn, "block_size": block_size, "plugins": plugins, **FIXED}
        self.lenders = {ranks: Lender(bootstrap(load_settings(**self.fixed))) for ranks in (1, size)}
        self.size = size
        for ranks in self.lenders:  # the largest pool first
            self.outputs(ranks, ["a"], GREEDY)

    def outputs(self, ranks, prompts, params, forced=False, **settings):
        """Outputs in order, and the engine's numbers. `forced`: everybody is preempted now and then."""
        engine = self.lenders[ranks].engine(load_settings(**{**self.fixed, "tensor_parallel_size": ranks, **settings}))
        if forced:
            engine._scheduler = PreemptNow(engine._scheduler, lambda step, group: step % 5 == int(group.id))
        several = params if isinstance(params, list) else [params] * len(prompts)
        for i, (prompt, one) in enumerate(zip(prompts, several, strict=True)):
            engine.add_request(str(i), prompt, SamplingParams(**one))
        found = {}
        for _ in range(5000):
            if not engine.has_unfinished:
                break
            found |= {output.request_id: output for output in engine.step() if output.finished}
        engine.check()
        stats = engine.stats()
        assert not forced or sum(stats.preemptions.values()) >= 5
        engine.close()
        return [found[str(i)] for i in range(len(prompts))], stats

    def tokens(self, ranks, prompts, params, **settings):
        outputs, _ = self.outputs(ranks, prompts, params, **settings)
        assert all(output.error is None for output in outputs), [output.error for output in outputs]
        return [[part.token_ids for part in output.outputs] for output in outputs]

    def assert_equal(self, prompts, params, **settings):
        assert self.tokens(self.size, prompts, params, **settings) == self.tokens(1, prompts, params, **settings)

    def end(self):
        for lender in self.lenders.values():
            lender.end()


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: " ".join(map(str, group)))
def group(request, tmp_path_factory):
    shape, *how = request.param
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", **SHAPES[shape])
    (folder / "ladder.py").write_text(LADDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "ladder", raising=False)
        made = Group(folder, *how)
        yield made
        made.end()


@pytest.fixture(scope="module")
def alone(group):
    """Each prompt alone in one process, prefix cache off."""
    return [group.tokens(1, [prompt], GREEDY, prefix_cache=False)[0] for prompt in PROMPTS]


def test_ranks_are_processes_with_their_share_of_every_block(group):
    one, several = (group.lenders[ranks].lasting.capacity() for ranks in (1, group.size))
    kv_heads = 2 if group.size % 2 == 0 else 3
    assert len(group.lenders[group.size].lasting.processes()) == group.size
    assert several.num_ranks == group.size
    assert several.block_bytes // group.size == one.block_bytes * -(-kv_heads // group.size) // kv_heads


@pytest.mark.parametrize(("budget", "cache"), list(itertools.product([None, 16], [True, False])))
@pytest.mark.parametrize("pool", ["ample", "recompute", "swap"])
def test_the_matrix_of_law_15(group, alone, budget, cache, pool):
    tight = {"num_blocks": max(3, 68 // group.block_size)}
    how = {} if pool == "ample" else {**tight, "preempt": pool}
    outputs, stats = group.outputs(
        group.size, PROMPTS, GREEDY, max_num_batched_tokens=budget, prefix_cache=cache, **how
    )
    assert [[part.token_ids for part in output.outputs] for output in outputs] == alone
    assert (sum(stats.preemptions.values()) > 0) == (pool != "ample")


def test_samples_and_beams_are_those_of_one_process(group):
    wishes = [
        {"n": 3, "temperature": 1.1, "seed": 3},
        {"use_beam_search": True, "beam_width": 4, "n": 4, "temperature": 0},
        {"temperature": 0.9, "seed": 4, "top_k": 20, "repetition_penalty": 1.4},
        {"temperature": 0, "presence_penalty": 1.0, "logit_bias": {40: 3.0}, "bad_words": ["e"]},
        {"n": 2, "best_of": 4, "temperature": 1.0, "seed": 5},
    ]
    params = [{"max_tokens": 10, "ignore_eos": True, **wish} for wish in wishes]
    group.assert_equal(PROMPTS, params)
    group.assert_equal(PROMPTS, params, preempt="swap", forced=True)


def test_log_probabilities_are_those_of_one_process(group):
    params = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1}
    several, one = (group.outputs(ranks, PROMPTS, params)[0] for ranks in (group.size, 1))
    for got, wanted in zip(several, one, strict=True):
        rows = [*got.prompt_logprobs[1:], *got.outputs[0].logprobs]
        expected = [*wanted.prompt_logprobs[1:], *wanted.outputs[0].logprobs]
        for row, other in zip(rows, expected, strict=True):
            assert {key: value.rank for key, value in row.items()} == {key: value.rank for key, value in other.items()}
            for key, value in row.items():
                assert value.logprob == pytest.approx(other[key].logprob, abs=1e-4)


def test_processors_reach_the_rank_that_samples(group):
    from ladder import Ladder

    params = {"logits_processors": [Ladder()], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    assert group.tokens(group.size, ["a"], params) == [[[8, 9, 10, 11, 12, 13]]]
    group.assert_equal(PROMPTS, params)


def test_a_processor_that_cannot_reach_it_is_refused(group, monkeypatch):
    from ladder import Ladder

    monkeypatch.setattr(Ladder, "__module__", "no.such.module")
    with pytest.raises(RequestError, match="Ladder cannot be sent"):
        group.outputs(group.size, ["a"], {"logits_processors": [Ladder()], "max_tokens": 4})
    group.assert_equal(["a"], GREEDY)


@pytest.mark.parametrize("group", GROUPS[:1], indirect=True, ids=lambda group: " ".join(map(str, group)))
def test_grammars_reach_the_rank_that_samples(group):
    wishes = [
        {"structured_outputs": {"regex": "[a-c]{3,5}-(x|yz){2}"}, "max_tokens": 20, "temperature": 1.0, "seed": 2},
        {"structured_outputs": {"choice": ["then", "other"]}, "max_tokens": 20, "temperature": 1.0, "seed": 3},
    ]
    group.assert_equal(["a", "the other one"], wishes)
