"""Others that attend to the same shapes: torch on contiguous keys and values, flash-attn and flashinfer on paged ones.

They only attend: keys and values lie there already, while a plugin's call writes the new ones as well.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from paged_core.bench.kernels.paged import MOST_LAYERS
from paged_core.bench.timing import measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paged_core.bench.kernels.cases import Case
    from paged_core.bench.site import Site

_WORKSPACE_BYTES = 128 << 20


class Rival(ABC):
    """Attention of one case on so many layers of its own that they do not fit a cache of the machine."""

    name: ClassVar[str]
    module: ClassVar[str] = ""
    """What must be importable."""

    def __init__(self, case: Case, dtype: torch.dtype, block_size: int, site: Site) -> None:
        shape, heads = self._shape(case, block_size), case.heads
        layer_bytes = 2 * int(np.prod(shape)) * dtype.itemsize
        self.count = max(1, min(MOST_LAYERS, site.memory // (2 * layer_bytes), -(-site.rotation // layer_bytes)))
        self.case = case
        self.q = torch.randn(case.sequences, case.new, heads.query, heads.size, device=site.device).to(dtype)
        self.layers = torch.empty(self.count, 2, *shape, dtype=dtype, device=site.device)
        self.layers[0].normal_()
        self.layers[1:] = self.layers[0]

    @classmethod
    def lacks(cls, dtype: str, device: str) -> str:
        """Why it does not run here, or ""."""
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return "not installed"
        if cls.module and (device != "cuda" or dtype == "float32"):
            return "only for 16 bits on cuda"
        return ""

    def run(self) -> Tensor:
        """Every layer once; what the last one gave, [sequences, new, heads, head_dim]."""
        for k, v in self.layers:
            out = self._attend(k, v)
        return out

    def _shape(self, case: Case, block_size: int) -> tuple[int, ...]:
        """Of a layer's keys."""
        blocks = case.sequences * -(-case.context // block_size)
        return blocks, block_size, case.heads.kv, case.heads.size

    @abstractmethod
    def _attend(self, k: Tensor, v: Tensor) -> Tensor:
        """One layer."""

    def _tables(self, block_size: int) -> Tensor:
        """Block ids of every sequence, scattered, int32 [sequences, blocks]."""
        width = -(-self.case.context // block_size)
        ids = np.random.default_rng(0).permutation(self.case.sequences * width).astype(np.int32)
        return torch.from_numpy(ids.reshape(self.case.sequences, width)).to(self.q.device)


class Contiguous(Rival):
    """torch's scaled dot product attention, by the implementation that it chooses, on [sequences, heads, context].

    Of a decode, torch may be told of the heads that share keys and values, or be handed them as several queries of one
    head. On a CPU the latter is 1.4 to 8 times as fast (torch 2.13); on a GPU both are tried, the faster one counts.
    """

    name = "contiguous"

    def __init__(self, case: Case, dtype: torch.dtype, block_size: int, site: Site) -> None:
        super().__init__(case, dtype, block_size, site)
        self._query = self.q.transpose(1, 2)  # [sequences, heads, new, head_dim]
        self._mask = causal_lower_right(case.new, case.context) if case.new > 1 else None
        self._attend_to: Callable[[Tensor, Tensor], Tensor] = self._shared
        if case.new == 1:
            ways = (self._grouped,) if site.kind == "cpu" else (self._grouped, self._shared)
            keys, values = self.layers[0]
            self._attend_to = min(ways, key=lambda way: measure(partial(way, keys, values), 3, clock=site.timer).best)

    def _shape(self, case: Case, block_size: int) -> tuple[int, ...]:
        return case.sequences, case.heads.kv, case.context, case.heads.size

    def _attend(self, k: Tensor, v: Tensor) -> Tensor:
        return self._attend_to(k, v)

    def _shared(self, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(self._query, k, v, self._mask, enable_gqa=True).transpose(1, 2)

    def _grouped(self, k: Tensor, v: Tensor) -> Tensor:
        heads = self.case.heads
        rows = self.q.view(self.case.sequences, heads.kv, heads.query // heads.kv, heads.size)
        return scaled_dot_product_attention(rows, k, v).view_as(self.q)


class FlashAttn(Rival):
    """flash-attn on a paged cache; its pages hold a multiple of 256 tokens, whatever the block size."""

    name = "flash-attn"
    module = "flash_attn"
    page = 256

    def __init__(self, case: Case, dtype: torch.dtype, block_size: int, site: Site) -> None:
        super().__init__(case, dtype, self.page, site)
        self._call: Any = importlib.import_module(self.module).flash_attn_with_kvcache
        self._table = self._tables(self.page)
        self._lengths = torch.full((case.sequences,), case.context, dtype=torch.int32, device=site.device)

    def _attend(self, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self._call(self.q, k, v, cache_seqlens=self._lengths, block_table=self._table, causal=True)
        return out


class FlashInfer(Rival):
    """flashinfer on a paged cache of this block size."""

    name = "flashinfer"
    module = "flashinfer"

    def __init__(self, case: Case, dtype: torch.dtype, block_size: int, site: Site) -> None:
        super().__init__(case, dtype, block_size, site)
        module: Any = importlib.import_module(self.module)
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=site.device)
        tables = self._tables(block_size)
        width, num = tables.shape[1], case.sequences
        pages = torch.arange(num + 1, dtype=torch.int32, device=site.device) * width
        last = torch.full_like(pages[1:], case.context - (width - 1) * block_size)
        sizes = (case.heads.query, case.heads.kv, case.heads.size, block_size)
        types = {"q_data_type": dtype, "kv_data_type": dtype}
        if case.new == 1:
            grouped = case.heads.query // case.heads.kv >= 4  # where flashinfer itself advises tensor cores
            self._wrapper: Any = module.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=grouped)
            self._wrapper.plan(pages, tables.flatten(), last, *sizes, **types)
        else:
            starts = torch.arange(num + 1, dtype=torch.int32, device=site.device) * case.new
            self._wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            self._wrapper.plan(starts, pages, tables.flatten(), last, *sizes, causal=True, **types)

    def _attend(self, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self._wrapper.run(self.q.flatten(0, 1), (k, v))
        return out.view_as(self.q)


RIVALS: tuple[type[Rival], ...] = (Contiguous, FlashAttn, FlashInfer)
