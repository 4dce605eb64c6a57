"""Block copies: all layers and all pairs of a step in one native call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_attn_cpu import entry
from paged_core.errors import PluginContractError
from paged_core.native.team import Team, native_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SMALL_COPY_BYTES = 1 << 18  # below this one thread is faster than waking a second


class BlockCopier:
    """Copies whole blocks of cache tensors whose first axis counts blocks."""

    def __init__(self, team: Team, digest: str) -> None:
        self._team = team
        self._compiled = entry.compile_native(entry.copy_function(digest))
        self._function = native_function(self._compiled.address)

    def run(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> None:
        """targets[layer][dst] = sources[layer][src] for every layer and every (src, dst)."""
        if not pairs or not sources:
            return
        table = np.array(pairs, dtype=np.int64)
        _check(sources, targets, table)
        addresses = np.array([[s.data_ptr() for s in sources], [t.data_ptr() for t in targets]], dtype=np.int64)
        block_bytes = sources[0].stride(0) * sources[0].element_size()
        counter = np.zeros(1, dtype=np.int64)
        fields = [counter.ctypes.data, len(sources), addresses[0].ctypes.data, addresses[1].ctypes.data]
        fields += [table.ctypes.data, len(table), block_bytes // 8]
        parameters = np.array(fields, dtype=np.int64)
        small = block_bytes * len(table) * len(sources) < SMALL_COPY_BYTES
        self._team.run(self._function, int(parameters.ctypes.data), 1 if small else self._team.num_threads)


def _check(sources: Sequence[Tensor], targets: Sequence[Tensor], table: np.ndarray) -> None:
    """Refuse what would write outside a cache or mix layouts."""
    if len(sources) != len(targets):
        raise PluginContractError(f"block copy from {len(sources)} caches to {len(targets)}: one target a source")
    for source, target in zip(sources, targets, strict=True):
        if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
            raise PluginContractError(
                f"block copy between caches of {tuple(source.shape)} {source.dtype} and "
                f"{tuple(target.shape)} {target.dtype}: blocks must have one layout"
            )
        if not (source.is_contiguous() and target.is_contiguous()):
            raise PluginContractError("block copy needs contiguous cache tensors, as `layout` describes them")
    limits = (min(len(s) for s in sources), min(len(t) for t in targets))
    if (table < 0).any() or (table.max(axis=0) >= limits).any():
        raise PluginContractError(
            f"block copy pairs {table.tolist()} exceed pools of {limits[0]} and {limits[1]} blocks"
        )
