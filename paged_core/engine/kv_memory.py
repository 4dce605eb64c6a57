"""How much memory the KV pool gets where nobody says: a share of the host's free memory, or what a GPU has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.engine.free_memory import memory_limit
from paged_core.engine.hardware import element_bytes
from paged_core.model.parallel.shard import Shard, local_spec
from paged_core.model.weights import num_parameters

if TYPE_CHECKING:
    from paged_core.api.model import ModelSpec
    from paged_core.settings import Settings

_FIXED = 1 << 30
"""Of a GPU, besides what follows from sizes: staging of swaps, workspaces of libraries, graphs, kernels' code."""
_SAMPLER_ELEMENTS = 1 << 24
"""Logits that random draws sort at a time, each with about 64 bytes of company."""


def host_kv_memory(settings: Settings, spec: ModelSpec, dtype: str) -> int:
    """Bytes for a pool in host memory: a fraction of what machine and cgroup leave free after the weights. Ranks on one
    machine share both, so that the pool is that of all ranks together."""
    free = memory_limit() - num_parameters(spec) * element_bytes(dtype)
    return int(max(free, 0) * settings.kv_memory_fraction)


def gpu_kv_memory(settings: Settings, spec: ModelSpec, dtype: str, token_budget: int, memory: tuple[int, int]) -> int:
    """Bytes for a pool on GPUs like the one whose `memory` is (free, in all), one a rank: what its allowed share leaves
    after the rank's weights and the working memory of the largest step, times the ranks. Memory that others hold is not
    free, whatever the share."""
    free, total = memory
    ranks = settings.tensor_parallel_size
    allowed = min(free, int(total * settings.gpu_memory_utilization))
    weights = num_parameters(local_spec(spec, Shard(size=ranks))) * element_bytes(dtype)
    working = working_memory(spec, dtype, token_budget, settings.max_num_seqs)  # rank 0 has the logits of all
    return ranks * max(0, allowed - weights - working)


def working_memory(spec: ModelSpec, dtype: str, num_tokens: int, num_draws: int) -> int:
    """Bytes that a step needs on a GPU besides weights and KV pool, rather more than less."""
    element = element_bytes(dtype)
    inner = spec.intermediate_size
    heads = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    activations = num_tokens * element * (4 * spec.hidden_size + 2 * heads + 4 * inner)
    logits = num_draws * spec.vocab_size
    return _FIXED + activations + logits * (8 + 2 * element) + min(logits, _SAMPLER_ELEMENTS) * 64
