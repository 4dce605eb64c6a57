"""The default model over three ranks: fp32 tokens are those of one process."""

from __future__ import annotations

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.assemble import load_settings
from paged_core.errors import ConfigError
from paged_core.testing.build import default_plugins
from paged_core.testing.lasting import Lender

pytestmark = [pytest.mark.slow, pytest.mark.model]

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "Water boils at",
    "The three primary colours are red, green and blue. " * 6 + "Mixing red and green gives",
]
WISHES = [
    {"temperature": 0, "max_tokens": 24},
    {"temperature": 0, "max_tokens": 16, "repetition_penalty": 1.2},
    {"n": 2, "temperature": 0.8, "seed": 5, "max_tokens": 16},
    {"use_beam_search": True, "beam_width": 3, "temperature": 0, "max_tokens": 12},
    {"temperature": 0, "max_tokens": 24},
]
CASES = [
    {},
    {"max_num_batched_tokens": 16, "prefix_cache": False},
    {"num_blocks": 14, "preempt": "swap"},
    {"num_blocks": 14, "preempt": "recompute"},
]
FIXED = {"dtype": "float32", "max_num_seqs": 8, "num_blocks": 128, "max_model_len": 512, "threads": 3, "seed": 1}


def answers(lender, **settings):
    """Token ids of all, and how often somebody was preempted."""
    engine = lender.engine(load_settings(**{**FIXED, **settings}))
    for i, (prompt, wish) in enumerate(zip(PROMPTS, WISHES, strict=True)):
        engine.add_request(str(i), prompt, SamplingParams(ignore_eos=True, **wish))
    found = {}
    while engine.has_unfinished:
        found |= {output.request_id: output for output in engine.step() if output.finished}
    engine.check()
    preemptions = sum(engine.stats().preemptions.values())
    engine.close()
    return [[part.token_ids for part in found[str(i)].outputs] for i in range(len(PROMPTS))], preemptions


@pytest.mark.parametrize("attn", ["attn_cpu", "attn_torch"])
def test_three_ranks_answer_what_one_process_does(smollm2, attn):
    plugins = default_plugins()
    one, three = Lender(plugins), Lender(plugins)
    try:
        expected, _ = answers(one, attn=attn)
        for case in CASES if attn == "attn_cpu" else CASES[:1]:
            got, preemptions = answers(three, attn=attn, tensor_parallel_size=3, **case)
            assert got == expected, case
            assert (preemptions > 0) == ("preempt" in case)
        capacities = [lender.lasting.capacity() for lender in (one, three)]
        assert capacities[1].block_bytes == capacities[0].block_bytes  # 3 KV heads, one a rank
        assert capacities[1].num_ranks == 3
    finally:
        one.end()
        three.end()


def test_two_ranks_are_refused_with_the_sizes_that_work(smollm2):
    with pytest.raises(ConfigError, match="sizes that work: 1, 3, 9"):
        Lender(default_plugins()).engine(load_settings(**FIXED, tensor_parallel_size=2))
