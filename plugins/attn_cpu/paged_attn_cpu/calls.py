"""LayerCalls: the parameters of all layers of a model at once, for callers that run them without Python in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_attn_cpu import parameters as at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_attn_cpu.planning import WorkPlan
    from paged_core.api.attention import AttentionLayer

_LINE = 8  # int64 in a cache line: counters of two layers share none


class LayerCalls:
    """One row of parameters a layer. What belongs to the layers is entered once, the rest by `fill`, once a step."""

    def __init__(self, layers: Sequence[AttentionLayer], caches: Sequence[Tensor]) -> None:
        self.layers, self.caches = layers, caches
        self._constants = np.array([[layer.scale, layer.softcap or 0.0] for layer in layers], dtype=np.float32)
        self._rows = np.zeros((len(layers), at.NUM_PARAMETERS), dtype=np.int64)
        self._own = np.array(
            [
                (cache.data_ptr(), layer.window or 0, constants.ctypes.data)
                for cache, layer, constants in zip(caches, layers, self._constants, strict=True)
            ],
            dtype=np.int64,
        )
        self._counters = np.zeros((len(layers), 0), dtype=np.int64)
        self._held: Mapping[int, WorkPlan] = {}
        self._common = np.zeros(0, dtype=np.int64)
        self._operands: tuple[tuple[Tensor, Tensor, Tensor], Tensor] | None = None
        self.windows = _alike([layer.window or 0 for layer in layers])
        self.ropes = _alike([layer.rope for layer in layers])
        self._arguments = self._rows.ctypes.data + np.arange(len(layers), dtype=np.int64) * self._rows.strides[0]

    def has(self, qkv: tuple[Tensor, Tensor, Tensor], out: Tensor, num_tokens: int) -> bool:
        """Whether these very tensors were entered before, for as many tokens."""
        before = self._operands
        return before is not None and before[0] is qkv and before[1] is out and len(out) == num_tokens

    def take(self, qkv: tuple[Tensor, Tensor, Tensor], out: Tensor, operands: tuple[int, ...]) -> None:
        """Enter q, k, v and out, by their addresses and strides."""
        self._operands = (qkv, out)
        self._rows[:, at.OPERAND_FIELDS] = operands

    def fill(
        self,
        common: NDArray[np.int64],
        num_counters: int,
        plans: Mapping[int, WorkPlan],
        angles: Mapping[int, tuple[int, int, int]],
    ) -> NDArray[np.int64]:
        """Enter a step and return the address of each layer's row; the counters of all layers are zero afterwards.

        common: the backend's parameters, of which those count that do not belong to step or layer; plans by window;
        angles by rope.
        """
        rows, self._held = self._rows, plans  # whose arrays the addresses below point into
        shared = common[: at.COUNTERS]
        if not np.array_equal(shared, self._common):
            self._common = shared.copy()
            rows[:, : at.COUNTERS] = shared
            rows[:, at.MAX_WORKERS] = common[at.MAX_WORKERS]
            rows[:, [at.CACHE, at.WINDOW, at.CONSTANTS]] = self._own
        for window, layers in self.windows.items():
            rows[layers, at.PLAN_FIELDS] = plans[window].fields
        for rope, layers in self.ropes.items():
            rows[layers, at.ANGLE_FIELDS] = angles[rope]
        if self._counters.shape[1] < num_counters:
            self._counters = np.zeros((len(rows), -(-num_counters // _LINE) * _LINE), dtype=np.int64)
            first, step = self._counters.ctypes.data, self._counters.strides[0]
            rows[:, at.COUNTERS] = first + np.arange(len(rows)) * step
        self._counters[:] = 0
        return self._arguments


def _alike(values: list[int]) -> dict[int, slice | NDArray[np.intp]]:
    """Where each distinct value stands; a slice of everything when there is one."""
    distinct = sorted(set(values))
    if len(distinct) == 1:
        return {distinct[0]: slice(None)}
    return {value: np.flatnonzero(np.array(values) == value) for value in distinct}
