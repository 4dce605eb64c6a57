"""small_need: the smallest need of each kind that any implementation should serve; what contract tests probe with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.api.allocator import AllocatorNeed
from paged_core.api.attention import AttentionNeed
from paged_core.api.executor import ExecutorNeed
from paged_core.api.loader import LoaderNeed
from paged_core.api.model import ModelSpec, RopeSpec
from paged_core.api.preemption import PreemptionNeed
from paged_core.api.sampler import SamplerNeed
from paged_core.api.scheduler import SchedulerNeed

if TYPE_CHECKING:
    from collections.abc import Callable

NO_MODEL = "paged-conformance/no-such-model"


def small_need(kind: str, device: str, required: frozenset[str] = frozenset()) -> Any:
    """A need of `kind` on `device` ("cpu" or "cuda") that requires `required` and asks for little else.

    A loader's names a model that does not exist, because no model suits every loader: it fits none.
    """
    return _NEEDS[kind](device, required)


def small_spec() -> ModelSpec:
    """Two layers, four query heads on two key-value heads of 16 elements."""
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=320,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        max_position=128,
        ropes=(RopeSpec(theta=10000.0, rotary_dim=16),),
    )


def _attention(device: str, required: frozenset[str]) -> AttentionNeed:
    dtype = "float32" if device == "cpu" else "bfloat16"
    return AttentionNeed(
        device, dtype, dtype, 4, 2, 64, 16, max_len=128, max_rows=8, token_budget=64, required=required
    )


def _executor(device: str, required: frozenset[str]) -> ExecutorNeed:
    dtype = "float32" if device == "cpu" else "bfloat16"
    return ExecutorNeed(
        model=NO_MODEL,
        spec=small_spec(),
        loader="auto",
        attn="auto",
        sampler="auto",
        device=device,
        dtype=dtype,
        kv_dtype=dtype,
        block_size=16,
        max_rows=8,
        max_len=128,
        token_budget=64,
        kv_memory_bytes=2**20,
        host_memory_bytes=2**20,
        required=required,
    )


_NEEDS: dict[str, Callable[[str, frozenset[str]], Any]] = {
    "loader": lambda device, required: LoaderNeed(NO_MODEL, required=required),
    "attn": _attention,
    "alloc": lambda device, required: AllocatorNeed(64, 64, 16, max_rows=8, max_len=128, required=required),
    "sched": lambda device, required: SchedulerNeed(64, 8, 128, 16, 64, required=required),
    "preempt": lambda device, required: PreemptionNeed(16, 4096, 64, required=required),
    "sampler": lambda device, required: SamplerNeed(device, 320, 8, required=required),
    "executor": _executor,
}
