"""Attention backends: where keys and values live and how queries read them through block tables (paper, section 4.1).

    layout = backend.layout(num_blocks)            once; the executor allocates one cache tensor per layer by it
    plan = backend.plan(batch)                     once a step; covers every distinct (window, head layout)
    backend.forward(layer, q, k, v, kv, plan, out) once per layer: writes k and v to their slots, then attends

Semantics. Query token i of a sequence at position p attends to positions j <= p of that sequence, and with a window w
only to p - w < j. Logits are q.k * scale, then softcap * tanh(logits / softcap) when the layer has a softcap, then
softmax in fp32. Slots that no position of a live sequence owns may hold anything, NaN included. A sequence's result
must not depend on its neighbours in the batch beyond rounding; with `batch_invariant` not at all. q, k, v and the
arrays of the batch are only read. Positions that a window has left behind belong to a live sequence: they hold numbers.

A cache of uint8 holds rows of codes; a row is the `head_dim` elements of one token's key, or value, in one KV head.
Next to its codes a row keeps two float32 of its own, within its block: copies, swaps and shared blocks carry them.

    step = (maximum - minimum) / 255    code = round((x - minimum) / step), 0..255    read as minimum + step * code

This is the reference; a backend may code otherwise if it is no coarser. What is stored depends on that row alone, as
`dtype` rounded it after rotation: never on neighbours, on the place in the block, or on how a prompt was cut.

A cache of float8_e4m3fn holds round_to_nearest_even(k / k_scale), at most +-448 (NaN stays NaN), and the same of v.

Graphs. A batch of decodes computes one token of each of its sequences (`num_tokens == num_seqs`). With `graphs`, what
`forward` launches for a batch of decodes, down to every address, depends on `num_seqs` and on its own arguments alone,
once the backend has seen such a batch: work captured with one plan may be replayed after `plan` of another batch of
decodes with as many sequences. `on_device` and `rope` of both lie in the same buffers. So that steps of 13 sequences
may use what was captured for 16, such a batch may end with padding: sequences of length 0 with one token, whose slot is
negative; their rows of `out` are zero.

`Batch.shared_prefixes` tells of disjoint sets of sequences whose tables begin with the same blocks, all full before
this step. A backend may read those once (`shared_prefix`) or make nothing of it.

Capabilities: sliding_window, softcap, lse (forward returns log-sum-exp), fused_rope (takes unrotated q and k),
batch_invariant, shared_prefix, native_calls, graphs, fp32, bf16, fp16, u8, fp8 (KV element types), swap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch


@dataclass(frozen=True, slots=True)
class AttentionNeed:
    """What a model asks of a backend. dtypes by name: float32, bfloat16, float16. `windows`: the distinct ones.

    `kv_dtype` may be uint8 or float8_e4m3fn as well; a backend without `u8`, or `fp8`, answers with a reason.

    `cache_dir` is this user's private folder for compiled kernels; None = the backend's own choice.
    """

    device: str  # "cpu" or "cuda"
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_len: int = 0
    max_rows: int = 0
    token_budget: int = 0
    windows: tuple[int, ...] = ()
    softcap: float | None = None
    cache_dir: str | None = None
    required: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One layer's cache tensor for `num_blocks` blocks: shape and dtype name. Bytes cover keys and values.

    Everything that a block's tokens left behind lies in the block, also what codes are scaled by.
    """

    shape: tuple[int, ...]
    dtype: str
    block_axis: int
    bytes_per_block: int


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer's constants. `rope` indexes `Batch.rope` (-1: no rotary positions); used with `fused_rope` only.

    `k_scale` and `v_scale` belong to narrow KV types: what is stored is k / k_scale and v / v_scale. With `fp8` they
    may be tuples: one scale a KV head.
    """

    index: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    k_scale: float | tuple[float, ...] = 1.0
    v_scale: float | tuple[float, ...] = 1.0
    rope: int = -1


@dataclass(frozen=True, slots=True)
class NativeCalls:
    """`Attention.forward` of several layers as machine code: call void(int64*) `function` with one argument a layer.

    Any number of threads may call with a layer's argument at once: they share its work, each returns when there is
    none left for it to take, and the layer is done when all have returned. Layers go in order, each once. The backend
    keeps what the addresses point to until the next `plan` or `native_calls`, all but the caller's own tensors.
    """

    function: int
    arguments: NDArray[np.int64]  # [layers], addresses


class Attention(ABC):
    """One backend, bound to one need. Owns scratch memory; the cache tensors belong to the executor."""

    @abstractmethod
    def layout(self, num_blocks: int) -> KVLayout:
        """The cache tensor of one layer for a pool of `num_blocks` (device or host)."""

    @abstractmethod
    def plan(self, batch: Batch) -> Any:
        """Work out once a step what all layers share. The result is passed back to `forward` untouched."""

    @abstractmethod
    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: Any, out: Tensor
    ) -> Tensor | None:
        """Write k and v into `kv` at the batch's slots, attend, store into `out`.

        q, out [tokens, heads, head_dim]; k, v [tokens, kv_heads, head_dim]; possibly strided over the token axis.
        Returns log-sum-exp float32 [tokens, heads] when the need requires `lse`, else None.
        """

    def native_calls(
        self,
        layers: Sequence[AttentionLayer],
        qkv: tuple[Tensor, Tensor, Tensor],
        caches: Sequence[Tensor],
        plan: Any,
        out: Tensor,
    ) -> NativeCalls | None:
        """What `forward(layer, *qkv, cache, plan, out)` does for each of the layers, to be called natively later.

        So a whole step can run without Python between its operators. q, k, v and out are then filled and read by the
        caller's own native code; results are those of `forward` to the bit. None, the default: not offered. Whoever
        declares `native_calls` offers them for every need but one that requires `lse`.
        """
        return None

    @abstractmethod
    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """Copy blocks within every layer's cache, all copies as if at once (a source is never also a target)."""

    @abstractmethod
    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Copy blocks from one tier's caches to the other's; complete (or ordered before later work) on return."""
