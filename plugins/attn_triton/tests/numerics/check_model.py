"""A model through the whole engine: greedy tokens are those of attn_torch, together and alone."""

from __future__ import annotations

import pytest

from paged_core import LLM, SamplingParams
from paged_core.testing.tiny import write_tiny_llama

PROMPTS = ["the one", "in the other an then", "a", "re" * 30]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def tokens(folder, attn, device, dtype="float32", **settings):
    with LLM(str(folder), attn=attn, device=device, dtype=dtype, num_blocks=64, block_size=16, **settings) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}], ids=["whole", "chunks"])
def test_greedy_tokens_are_those_of_the_reference(tmp_path, device, settings):
    folder = write_tiny_llama(tmp_path / "tiny")
    assert tokens(folder, "attn_triton", device, **settings) == tokens(folder, "attn_torch", device)
