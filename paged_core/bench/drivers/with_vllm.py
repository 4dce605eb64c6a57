"""vLLM's CPU build, bfloat16. `model` is a Hugging Face folder; the threads are bound by the environment."""

from __future__ import annotations

from typing import Any

import vllm


class Vllm:
    """An LLM without prefix cache, with room for 64 sequences of 1,088 tokens."""

    version = f"vLLM CPU {vllm.__version__.split('+')[0]}"

    def __init__(self, model: str) -> None:
        room = {"max_model_len": 1088, "max_num_seqs": 64}
        self._llm = vllm.LLM(model=model, dtype="bfloat16", enable_prefix_caching=False, **room)

    def generate(self, prompts: list[list[int]], outputs: list[int]) -> list[list[int]]:
        """All at once."""
        params = [vllm.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for n in outputs]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self._llm.generate(inputs, params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def close(self) -> None:
        """Its engine process ends with this object."""
        del self._llm


def load(order: dict[str, Any]) -> Vllm:
    """The engine that the order names."""
    return Vllm(order["model"])
