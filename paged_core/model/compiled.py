"""CompiledLayers: all decoder layers as one native call: norms, products, attention, without Python in between.

    x += delta, norm -> qkv -> attention -> o                    delta    (in int8 every product's inputs are
    x += delta, norm -> gate_up, silu(gate) * up -> down         delta     quantised before it)

For models of the common kind on a CPU with native products; the numbers are those of the same layers run one by one.
Buffers stay from step to step and grow with the largest one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_core.model.layers import Mlp
from paged_core.model.linear.native import NativeLinear
from paged_core.model.parallel.linear import SummedLinear
from paged_core.native.matrix import compiled_products, work_items
from paged_core.native.team import Team

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.model.fused import Fused
    from paged_core.model.layers import DecoderLayer, Norm
    from paged_core.native.matrix import PackedWeight
    from paged_core.tracing import Trace

_LINE = 8  # int64 in a cache line: the counters of two calls share none
_NORM_ITEM = 1 << 14  # elements a claimed item of a norm has at most, about


def hinders(layers: Sequence[DecoderLayer], final: Norm | None) -> str:
    """Why the layers cannot be compiled, or ""."""
    if final is None or not final.is_fused:
        return "the final norm is not a native one"
    return next((reason for layer in layers if (reason := _hinders(layer))), "")


def _hinders(layer: DecoderLayer) -> str:
    attention, feed_forward = layer.attention, layer.feed_forward
    if isinstance(attention.output, SummedLinear):
        return "the ranks of a group add up between its products"
    if layer.placement != "pre" or not (layer.attn_norm.is_fused and layer.mlp_norm.is_fused):
        return "its norms are not native ones before attention and feed-forward"
    if not isinstance(feed_forward, Mlp) or feed_forward.gated is None:
        return "its feed-forward part is not a gated SiLU with native products"
    if attention.rotates:
        return "its heads are rotated before attention"
    if any(norm is not None and not norm.is_fused for norm in (attention.q_norm, attention.k_norm)):
        return "the norms of its heads are not native ones"
    return "" if _weights(layer) else "its products are not native ones"


class _Calls:
    """One native function of every layer: its address, and a row of parameters a layer."""

    def __init__(self, name: str, function: int, rows: NDArray[np.int64]) -> None:
        self.name, self.function, self.rows = name, function, rows


class _Buffers:
    """What goes from one call to the next, for up to `capacity` tokens."""

    def __init__(self, capacity: int, weights: list[PackedWeight], hidden: int) -> None:
        """`weights`: of one layer, the others' are as large."""
        self.capacity = capacity
        widths = (hidden, hidden, hidden, weights[0].width, weights[1].inputs, weights[2].width)
        made = [torch.empty((capacity, width), dtype=torch.bfloat16) for width in widths]
        self.x, self.normed, self.delta, self.qkv, self.attended, self.inner = made
        quantized = weights[0].scales is not None
        self.codes = torch.empty(capacity * max(w.inputs for w in weights) if quantized else 0, dtype=torch.uint8)
        self.scales = torch.empty(capacity * max(w.num_groups for w in weights))


def _weights(layer: DecoderLayer) -> list[PackedWeight]:
    """qkv, o, gate_up, down; empty if they are not native."""
    if not isinstance(layer.feed_forward, Mlp):
        return []
    linears = (layer.attention.qkv, layer.attention.output, layer.feed_forward.gated, layer.feed_forward.down)
    weights = [linear.weight for linear in linears if isinstance(linear, NativeLinear) and linear.is_exact_fit]
    return weights if len(weights) == len(linears) else []


class CompiledLayers:
    """Used by one thread at a time; `forward` gives a view of a buffer that the next call overwrites."""

    def __init__(self, layers: Sequence[DecoderLayer], final: Norm, fused: Fused, attention: Attention) -> None:
        """Raises nothing for layers that nothing `hinders`."""
        from paged_core.native import products as at
        from paged_core.native.sequence import Sequence as NativeSequence

        self._at = at
        self._layers, self._attention = layers, attention
        self._constants = [layer.attention.layer for layer in layers]
        self._team = Team(torch.get_num_threads())
        self._sequence = NativeSequence(self._team)
        self._sums = torch.empty(at.SUMS_BYTES * self._team.num_threads, dtype=torch.uint8)
        self._eps = np.array([final.eps], dtype=np.float32)
        self._hidden = len(final.weight)
        self._norms = [[layer.attn_norm for layer in layers] + [final], [layer.mlp_norm for layer in layers]]
        heads = [(layer.attention.q_norm, layer.attention.k_norm) for layer in layers]
        self._head_norms = [[norm for norm in norms if norm] for norms in zip(*heads, strict=True) if norms[0]]
        self._norm_address = fused.norm_address
        self._owners = compiled_products()
        self._weights = [_weights(layer) for layer in layers]
        self._buffers = _Buffers(0, self._weights[0], self._hidden)
        self._num_rows = -1
        self._trace: Trace | None = None
        self._make_calls()

    def _make_calls(self) -> None:
        """The rows of parameters of everything, in the order of the calls; `None` stands for attention."""
        at, weights = self._at, self._weights
        self._products = [
            np.stack([of_layer[i].parameters(at.PLAIN) for of_layer in weights]) for i in range(len(weights[0]))
        ]
        self._items: list[NDArray[np.int64] | None] = [None] * len(self._products)  # whose addresses the rows hold
        quantized = weights[0][0].scales is not None
        pairs, quads, quantize = self._owners.addresses
        self._quantizers = [np.zeros((len(weights), 8), dtype=np.int64) for _ in range(4 if quantized else 0)]
        self._norm_rows = [np.zeros((len(norms), 11), dtype=np.int64) for norms in self._norms + self._head_norms]
        names = ("qkv", "o", "gate_up", "down")
        product = quads if quantized else pairs
        products = [_Calls(name, product, rows) for name, rows in zip(names, self._products, strict=True)]
        before = [[_Calls("quantise", quantize, rows)] for rows in self._quantizers] or [[]] * 4
        norms = [_Calls("norm", self._norm_address, rows) for rows in self._norm_rows]
        order: list[_Calls | None] = [norms[0], *before[0], products[0], *norms[2:], None, *before[1], products[1]]
        order += [norms[1], *before[2], products[2], *before[3], products[3]]
        self._lay_out(order)

    def _lay_out(self, order: list[_Calls | None]) -> None:
        """Fixed addresses: functions and arguments in calling order, and a line of counters for each."""
        num_layers, width = len(self._layers), len(order)
        total = num_layers * width + 1
        self._functions, self._arguments = np.zeros(total, np.int64), np.zeros(total, np.int64)
        self._counters = np.zeros((total, _LINE), dtype=np.int64)
        self._names = [call.name if call else "attention" for call in order] * num_layers + ["norm"]
        for place, call in enumerate(order):
            if call is None:
                self._attention_place = slice(place, total - 1, width)
                continue
            here = np.arange(len(call.rows)) * width + place  # the first norm has one row more: the final one
            call.rows[:, 0] = self._counters.ctypes.data + here * _LINE * 8
            self._functions[here] = call.function
            self._arguments[here] = call.rows.ctypes.data + np.arange(len(call.rows)) * call.rows.strides[0]
        for norms, rows in zip(self._norms + self._head_norms, self._norm_rows, strict=True):
            rows[:, 1] = self._eps.ctypes.data
            rows[:, 4] = [norm.weight.data_ptr() for norm in norms]

    def watch(self, trace: Trace) -> None:
        """Time every call from now on."""
        self._trace = trace
        self._sequence.stamps = np.zeros(len(self._functions) + 1, dtype=np.int64)

    def forward(self, x: Tensor, caches: Sequence[Tensor], plan: Any) -> Tensor | None:
        """Hidden states [tokens, hidden] after the final norm; None when the attention backend has no native calls."""
        if self._num_rows != len(x):
            self._enter(len(x))
        calls = self._attention.native_calls(self._constants, self._qkv, caches, plan, self._attended)
        if calls is None:
            return None
        self._functions[self._attention_place] = calls.function
        self._arguments[self._attention_place] = calls.arguments
        self._counters[:] = 0
        self._x.copy_(x)
        begin = time.perf_counter_ns()
        self._sequence.run(self._functions, self._arguments)
        if self._trace is not None:
            self._record(self._trace, begin, time.perf_counter_ns())
        return self._normed

    def _record(self, trace: Trace, begin: int, end: int) -> None:
        stamps = self._sequence.stamps
        assert stamps is not None
        cycles = stamps - stamps[0]
        trace.add(self._names, (begin + cycles * ((end - begin) / max(int(cycles[-1]), 1))).astype(np.int64))

    def _enter(self, rows: int) -> None:
        """Operands of steps of so many tokens."""
        if rows > self._buffers.capacity:
            self._buffers = _Buffers(max(rows, self._buffers.capacity * 3 // 2), self._weights[0], self._hidden)
        self._num_rows = rows
        b, size = self._buffers, self._hidden
        attention = self._layers[0].attention
        self._x, self._normed, self._qkv = b.x[:rows], b.normed[:rows], attention.split(b.qkv[:rows])
        self._attended = b.attended[:rows].view(rows, attention.heads[0], attention.head_dim)
        several = max(1, min(_NORM_ITEM // size, -(-rows // (2 * self._team.num_threads))))
        for norm_rows in self._norm_rows[:2]:
            norm_rows[:, 2], norm_rows[:, 3], norm_rows[:, 5] = b.x.data_ptr(), b.delta.data_ptr(), b.normed.data_ptr()
            norm_rows[:, 6:] = rows, size, several, 1, size
        for norm_rows, part in zip(self._norm_rows[2:], self._qkv, strict=False):
            heads, width = part.shape[1:]
            norm_rows[:, 2] = norm_rows[:, 5] = part.data_ptr()
            norm_rows[:, 6:] = rows * heads, width, several * heads, heads, part.stride(0)
        self._norm_rows[0][0, 3] = 0  # nothing to add yet
        operands = ((b.normed, b.qkv), (b.attended, b.delta), (b.normed, b.inner), (b.inner, b.delta))
        for i, (x, y) in enumerate(operands):
            self._enter_product(i, rows, x, y)
            if self._quantizers:
                self._enter_quantized(i, rows, x)

    def _enter_product(self, i: int, rows: int, x: Tensor, out: Tensor) -> None:
        at, p = self._at, self._products[i]
        items = self._items[i] = work_items(rows, self._weights[0][i].num_panels, self._team.num_threads)
        p[:, at.X], p[:, at.X_STRIDE] = x.data_ptr(), x.shape[1] * 2
        p[:, at.OUT], p[:, at.OUT_STRIDE] = out.data_ptr(), out.shape[1] * 2
        p[:, at.ITEMS], p[:, at.NUM_ITEMS], p[:, at.SUMS] = items.ctypes.data, len(items), self._sums.data_ptr()

    def _enter_quantized(self, i: int, rows: int, x: Tensor) -> None:
        at, codes, scales = self._at, self._buffers.codes.data_ptr(), self._buffers.scales.data_ptr()
        p, size = self._products[i], x.shape[1]
        p[:, at.X], p[:, at.X_STRIDE], p[:, at.INPUT_SCALES] = codes, size, scales
        self._quantizers[i][:, 1:] = x.data_ptr(), size * 2, codes, scales, rows, size, p[0, at.GROUP]
