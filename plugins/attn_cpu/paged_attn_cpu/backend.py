"""CpuAttention: paged attention on a CPU by native kernels, one call a layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_attn_cpu import entry, planning
from paged_attn_cpu import parameters as at
from paged_attn_cpu.blocks import BlockCopier
from paged_attn_cpu.calls import LayerCalls
from paged_attn_cpu.kernels_attend import workspace_floats
from paged_attn_cpu.kernels_cells import SCALING_BYTES
from paged_attn_cpu.microkernels_pairs import CELL
from paged_attn_cpu.planning import WorkPlan, make_plan
from paged_attn_cpu.shared import find_shared
from paged_attn_cpu.vectors import LANES
from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout, NativeCalls
from paged_core.errors import PluginContractError
from paged_core.native.processor import has_pairs, has_quads
from paged_core.native.team import Team, native_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch

ELEMENTS: dict[str, Any] = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.int16, "uint8": np.uint8}
SMALL_WORK = 1 << 14  # (row, key) pairs of all KV heads below which one thread is faster than waking a second


class CpuAttention(Attention):
    """One backend for one need. Used by one thread at a time; two backends do not share anything.

    The cache of a layer is [blocks, 2 (K, V), kv_heads, block_size, width], width being head_dim rounded up to 16:
    a block is one contiguous piece to copy or swap, and a KV head's keys in a block are one contiguous run to read:
    rows, or, where `keeps_cells` says so, cells of 16 keys (kernels_cells.py).
    """

    def __init__(self, need: AttentionNeed, num_threads: int, pairs: bool = True, quads: bool = True) -> None:
        self._need = need
        self._group = need.num_heads // need.num_kv_heads
        self._width = -(-need.head_dim // LANES) * LANES
        self._dtype: torch.dtype = getattr(torch, need.dtype)
        self._kv_dtype: torch.dtype = getattr(torch, need.kv_dtype)
        self._wants_lse = "lse" in need.required
        self._fused_rope = "fused_rope" in need.required
        self._team = Team(num_threads)
        digest = entry.source_digest()
        # the compiled objects own the machine code: keep them as long as their addresses
        in_pairs = pairs and need.dtype == need.kv_dtype == "bfloat16" and has_pairs()
        self.keeps_cells = in_pairs and need.block_size % CELL == 0
        self._in_codes = need.kv_dtype == "uint8"
        self._heads_together = need.num_kv_heads if self.keeps_cells or self._in_codes else 1
        cache_element = ELEMENTS[need.kv_dtype]
        if self._in_codes and not (quads and has_quads()):
            cache_element = np.int8
        self._compiled = entry.compile_native(
            entry.make_layer_function(ELEMENTS[need.dtype], cache_element, in_pairs, digest)
        )
        self._layer_function = native_function(self._compiled.address)
        self._copier = BlockCopier(self._team, digest)
        self._constants = np.zeros(2, dtype=np.float32)
        self._parameters = np.zeros(at.NUM_PARAMETERS, dtype=np.int64)
        self._parameters_address = int(self._parameters.ctypes.data)
        self._bind_workspace(num_threads)
        self._queries = self._partials = self._states = np.zeros(0, dtype=np.float32)
        self._counters = np.zeros(0, dtype=np.int64)
        self._calls: LayerCalls | None = None

    def _bind_workspace(self, num_threads: int) -> None:
        need = self._need
        floats = (
            -(-workspace_floats(max(planning.QUERY_ROWS, need.num_heads), self._width, need.num_kv_heads) // LANES)
            * LANES
        )
        # vectors that cross cache lines load at half the rate: begin at one
        unaligned = np.zeros(floats * num_threads + LANES, dtype=np.float32)
        self._workspace = unaligned[-unaligned.ctypes.data // 4 % LANES :]
        p = self._parameters
        p[[at.KV_HEADS, at.GROUP, at.HEAD_DIM]] = need.num_kv_heads, self._group, need.head_dim
        p[[at.WIDTH, at.BLOCK_SIZE]] = self._width, need.block_size
        p[at.WORKSPACE], p[at.WORKSPACE_FLOATS] = self._workspace.ctypes.data, floats
        p[at.MAX_WORKERS] = num_threads

    def layout(self, num_blocks: int) -> KVLayout:
        """The cache tensor of one layer: [blocks, 2, kv_heads, block_size, width]."""
        need = self._need
        if self._in_codes:
            size = need.num_kv_heads * need.block_size // CELL * (2 * CELL * self._width + SCALING_BYTES)
            return KVLayout((num_blocks, size), need.kv_dtype, 0, size)
        shape = (num_blocks, 2, need.num_kv_heads, need.block_size, self._width)
        return KVLayout(shape, need.kv_dtype, 0, math.prod(shape[1:]) * self._kv_dtype.itemsize)

    def plan(self, batch: Batch) -> WorkPlan:
        """Build the step's work list and grow the scratch to it."""
        return self._plan(batch, 0)

    def _plan(self, batch: Batch, window: int) -> WorkPlan:
        shared = find_shared(batch, self._need.block_size, window)
        plan = make_plan(batch, self._group, shared, self._heads_together, self._team.num_threads)
        heads, row = self._need.num_kv_heads, self._group * self._width
        self._queries = self._grown(self._queries, heads * batch.num_tokens * row, at.QUERIES)
        self._partials = self._grown(self._partials, plan.num_partials * heads * row, at.PARTIALS)
        self._states = self._grown(self._states, plan.num_partials * heads * self._group * 2, at.PARTIAL_STATES)
        counters = at.FIRST_MERGE + (plan.num_merges + plan.num_shared) * heads
        self._counters = self._grown(self._counters, counters, at.COUNTERS)
        return plan

    def _for_window(self, plan: WorkPlan, window: int) -> WorkPlan:
        """The plan of layers with this window: another one where it is shorter than a sequence that shares."""
        if not 0 < window < plan.longest:
            return plan
        if window not in plan.narrower:
            plan.narrower[window] = self._plan(plan.batch, window)
        return plan.narrower[window]

    def _grown(self, array: Any, size: int, parameter: int) -> Any:
        """`array`, or a larger one bound to its parameter. Grows by half at least, so that it settles."""
        if len(array) < size:
            array = np.zeros(max(size, len(array) * 3 // 2), dtype=array.dtype)
        self._parameters[parameter] = array.ctypes.data
        return array

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: WorkPlan, out: Tensor
    ) -> Tensor | None:
        """Rotate (with `fused_rope`), write K and V, attend, store into `out`; q, k and v are only read.

        A returned log-sum-exp tensor is the caller's to keep.
        """
        need, batch = self._need, plan.batch
        plan = self._for_window(plan, layer.window or 0)
        q, k = self._rows(q, "q", need.num_heads, batch), self._rows(k, "k", need.num_kv_heads, batch)
        v = self._rows(v, "v", need.num_kv_heads, batch)
        if out.stride()[1:] != (need.head_dim, 1):
            raise PluginContractError(
                f"attn_cpu got an output with strides {out.stride()}: heads must be adjacent within a token"
            )
        self._rows(out, "out", need.num_heads, batch)
        _refuse_scales(layer)
        lse = torch.empty((batch.num_tokens, need.num_heads), dtype=torch.float32) if self._wants_lse else None
        self._constants[:] = layer.scale, layer.softcap or 0.0
        p = self._parameters
        p[at.PLAN_FIELDS] = plan.fields
        p[at.OPERAND_FIELDS] = _operands(q, k, v, out)
        p[at.ANGLE_FIELDS] = self._angles(layer.rope, batch)
        p[at.CACHE], p[at.LSE], p[at.WINDOW] = kv.data_ptr(), 0 if lse is None else lse.data_ptr(), layer.window or 0
        p[at.CONSTANTS] = self._constants.ctypes.data
        self._counters[:] = 0
        small = plan.cost * need.num_kv_heads < SMALL_WORK
        self._team.run(self._layer_function, self._parameters_address, 1 if small else self._team.num_threads)
        return lse

    def native_calls(
        self,
        layers: Sequence[AttentionLayer],
        qkv: tuple[Tensor, Tensor, Tensor],
        caches: Sequence[Tensor],
        plan: WorkPlan,
        out: Tensor,
    ) -> NativeCalls | None:
        """One row of parameters a layer; only what a step changes is entered anew. No log-sum-exp this way."""
        if self._wants_lse:
            return None
        if self._calls is None or self._calls.layers is not layers or self._calls.caches is not caches:
            for layer in layers:
                _refuse_scales(layer)
            self._calls = LayerCalls(layers, caches)
        if not self._calls.has(qkv, out, plan.batch.num_tokens):
            self._check_native(qkv, out, plan.batch)
            self._calls.take(qkv, out, _operands(*qkv, out))
        plans = {window: self._for_window(plan, window) for window in self._calls.windows}
        angles = {rope: self._angles(rope, plan.batch) for rope in self._calls.ropes}
        return NativeCalls(
            self._compiled.address, self._calls.fill(self._parameters, len(self._counters), plans, angles)
        )

    def _check_native(self, qkv: tuple[Tensor, Tensor, Tensor], out: Tensor, batch: Batch) -> None:
        """Nothing may be copied: the tensors are filled later."""
        heads = (self._need.num_heads, self._need.num_kv_heads, self._need.num_kv_heads, self._need.num_heads)
        for tensor, name, count in zip((*qkv, out), ("q", "k", "v", "out"), heads, strict=True):
            if self._rows(tensor, name, count, batch) is not tensor:
                raise PluginContractError(
                    f"attn_cpu got {name} with strides {tensor.stride()} for native calls: heads must be adjacent"
                )

    def _rows(self, tensor: Tensor, name: str, heads: int, batch: Batch) -> Tensor:
        """Check one tensor of [tokens, heads, head_dim]; copies only what is strided inside a token."""
        shape = (batch.num_tokens, heads, self._need.head_dim)
        if tensor.shape != shape or tensor.dtype != self._dtype:
            raise PluginContractError(
                f"attn_cpu was created for {name} of shape {shape} and {self._dtype}, not {tuple(tensor.shape)} and "
                f"{tensor.dtype}"
            )
        return tensor if tensor.stride()[1:] == (shape[2], 1) else tensor.contiguous()

    def _angles(self, rope: int, batch: Batch) -> tuple[int, int, int]:
        """Addresses of cos and sin and half the rotary dimension; zeros when q and k arrive rotated."""
        if not self._fused_rope or rope < 0:
            return 0, 0, 0
        cos, sin = batch.rope[rope]
        half = cos.shape[1]
        if cos.dtype != torch.float32 or not (cos.is_contiguous() and sin.is_contiguous()):
            raise PluginContractError("attn_cpu needs contiguous float32 cos and sin tables in Batch.rope")
        if cos.shape != (batch.num_tokens, half) or sin.shape != cos.shape or 2 * half > self._need.head_dim:
            raise PluginContractError(
                f"Batch.rope[{rope}] has shapes {tuple(cos.shape)} and {tuple(sin.shape)} for {batch.num_tokens} "
                f"tokens of head_dim {self._need.head_dim}"
            )
        return cos.data_ptr(), sin.data_ptr(), half

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        """Copy blocks within every layer's cache."""
        self._copier.run(caches, caches, copies)

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        """Copy blocks between the caches of two tiers; complete on return."""
        self._copier.run(sources, targets, pairs)


def _operands(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> tuple[int, ...]:
    """Their addresses, then their strides."""
    tensors = (q, k, v, out)
    return (*(tensor.data_ptr() for tensor in tensors), *(tensor.stride(0) for tensor in tensors))


def _refuse_scales(layer: AttentionLayer) -> None:
    """Quantised caches are not ours."""
    if layer.k_scale != 1.0 or layer.v_scale != 1.0:
        raise PluginContractError(
            f"attn_cpu got k_scale {layer.k_scale} and v_scale {layer.v_scale}; its caches hold unscaled values"
        )
