"""OpenVINO GenAI's continuous batching. `model` is an exported folder; keys and values as its defaults have them."""

from __future__ import annotations

from typing import Any

import openvino
import openvino_genai as genai


class OpenVino:
    """A ContinuousBatchingPipeline on so many threads, with room for 64 sequences and 4 GiB of cache."""

    version = f"OpenVINO GenAI {openvino.__version__.split('-')[0]}"

    def __init__(self, model: str, threads: int) -> None:
        config = genai.SchedulerConfig()
        config.cache_size, config.max_num_seqs, config.max_num_batched_tokens = 4, 64, 512
        config.enable_prefix_caching, config.dynamic_split_fuse = False, True
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = genai.ContinuousBatchingPipeline(
            model, scheduler_config=config, device="CPU", properties=properties
        )

    def generate(self, prompts: list[list[int]], outputs: list[int]) -> list[list[int]]:
        """All at once."""
        inputs = [_tensor(prompt) for prompt in prompts]
        results = self._pipeline.generate(inputs, [_greedy(output) for output in outputs])
        return [list(result.m_generation_ids[0]) for result in results]

    def close(self) -> None:
        """Nothing runs outside this process."""


def _tensor(prompt: list[int]) -> Any:
    import numpy as np  # openvino's own requirement

    return openvino.Tensor(np.array([prompt], dtype=np.int64))


def _greedy(output: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = output, True, False
    return config


def load(order: dict[str, Any]) -> OpenVino:
    """The pipeline that the order names."""
    return OpenVino(order["model"], order["threads"])
