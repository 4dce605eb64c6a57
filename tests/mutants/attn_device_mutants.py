"""Broken backends of what devices need: `graphs` and caches of e4m3. `attn_graphs_healthy` has no defect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from paged_core.api.attention import Attention, AttentionNeed, KVLayout
from paged_core.api.batch import Batch
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair

ARRAYS = ("query_start", "seq_lens", "rows", "tables", "positions", "slots")


class Graphed(Attention):
    """attn_torch that looks at the batch's arrays in `forward` only, as launches recorded once do."""

    def __init__(self, inner: Any, need: AttentionNeed) -> None:
        self.inner = inner
        self.need = need

    def layout(self, num_blocks: int) -> KVLayout:
        return self.inner.layout(num_blocks)

    def plan(self, batch: Batch) -> Any:
        return batch

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Batch, out: Any) -> Any:
        live = self.live(plan)
        used, is_decode = int(live.num_tokens), plan.num_tokens == plan.num_seqs
        lse = self.inner.forward(layer, q[:used], k[:used], v[:used], kv, self.inner.plan(live), out[:used])
        if is_decode:
            self.pad(out[used:])
        return lse

    def live(self, batch: Batch) -> Batch:
        """The batch as its arrays on the device are now, without padding."""
        arrays = batch.on_device
        if arrays is None:
            return batch
        now = {name: getattr(arrays, name).numpy() for name in ARRAYS}
        used = int((now["seq_lens"] > 0).sum())
        for name in ("seq_lens", "rows", "positions", "slots"):
            now[name] = now[name][:used]
        return Batch(used, used, **now)

    def pad(self, rows: Tensor) -> None:
        rows.zero_()

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        self.inner.copy_blocks(caches, copies)

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        self.inner.swap_blocks(sources, targets, pairs)


class TakesASnapshot(Graphed):
    """Keeps what the arrays held when the batch was planned."""

    def plan(self, batch: Batch) -> Any:
        if batch.on_device is None:
            return batch
        held = {name: getattr(batch.on_device, name).clone() for name in ARRAYS}
        return replace(batch, on_device=type(batch.on_device)(**held))


class LeavesPaddingAsItWas(Graphed):
    """Writes nothing for padding."""

    def pad(self, rows: Tensor) -> None:
        return


class CutsOff(Graphed):
    """Rounds towards zero where e4m3 rounds to nearest."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        if self.need.kv_dtype == "float8_e4m3fn":
            v = v * (1 - 2.0**-5)
        return super().forward(layer, q, k, v, kv, plan, out)


class FirstScaleForAllHeads(Graphed):
    """Knows one scale only."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        if not isinstance(layer.k_scale, float):
            layer = replace(layer, k_scale=layer.k_scale[0])
            k = k * torch.tensor([[1.0], [2.0]], dtype=k.dtype)  # the second head's scale is taken for another
        return super().forward(layer, q, k, v, kv, plan, out)


class MutantProvider(Provider[AttentionNeed, Attention]):
    """Offers one of the above; it declares what attn_torch declares and graphs besides."""

    kind = "attn"
    api = 1
    priority = -1
    capabilities = frozenset({"sliding_window", "softcap", "fp32", "bf16", "fp16", "fp8", "swap", "graphs"})

    def __init__(self, name: str, mutant: type[Graphed]) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        self._mutant = mutant

    def probe(self, need: AttentionNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: AttentionNeed, settings: PluginSettings, plugins: PluginRegistry) -> Attention:
        inner = replace(need, required=need.required - {"graphs"})
        return self._mutant(plugins.create("attn", "attn_torch", inner), need)


@hookimpl
def paged_attention() -> list[MutantProvider]:
    return [
        MutantProvider("attn_graphs_healthy", Graphed),
        MutantProvider("attn_graphs_snapshot", TakesASnapshot),
        MutantProvider("attn_graphs_padding", LeavesPaddingAsItWas),
        MutantProvider("attn_e4m3_cut_off", CutsOff),
        MutantProvider("attn_e4m3_one_scale", FirstScaleForAllHeads),
    ]
