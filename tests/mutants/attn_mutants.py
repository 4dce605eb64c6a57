"""Broken attention backends, each attn_torch with one defect. `test_attn_mutants.py` names the test that catches it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.attention import Attention, AttentionLayer, AttentionNeed, KVLayout
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.batch import Batch

DECLARED = frozenset({"sliding_window", "softcap", "lse", "batch_invariant", "fp32", "bf16", "fp16", "u8", "swap"})


class Wrapped(Attention):
    """attn_torch, passed on faithfully; a mutant overrides one method."""

    def __init__(self, inner: Any, need: AttentionNeed) -> None:
        self.inner = inner
        self.need = need

    def layout(self, num_blocks: int) -> KVLayout:
        return self.inner.layout(num_blocks)

    def plan(self, batch: Batch) -> Any:
        return self.inner.plan(batch)

    def forward(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: Any, out: Tensor
    ) -> Tensor | None:
        return self.inner.forward(layer, q, k, v, kv, plan, out)

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        self.inner.copy_blocks(caches, copies)

    def swap_blocks(self, sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Sequence[SwapPair]) -> None:
        self.inner.swap_blocks(sources, targets, pairs)


class TableOffByOne(Wrapped):
    """Reads each block through the table entry before its own."""

    num_blocks = 3  # what noise in the first entry may point at; every pool of the suite has as many

    def plan(self, batch: Batch) -> Any:
        return self.inner.plan(replace(batch, tables=np.roll(batch.tables, 1, axis=1).clip(0, self.num_blocks - 1)))


class CausalMaskIgnored(Wrapped):
    """Queries of a prefill see later keys."""

    def __init__(self, inner: Any, need: AttentionNeed) -> None:
        super().__init__(inner, need)
        healthy = inner._hidden
        inner._hidden = lambda layer, first, oldest, context: healthy(layer, first, oldest, context) & False


class ChunkForgetsItsPrefix(Wrapped):
    """The mask of a chunk starts at position 0 instead of behind the prefix."""

    def __init__(self, inner: Any, need: AttentionNeed) -> None:
        super().__init__(inner, need)
        healthy = inner._hidden
        inner._hidden = lambda layer, first, oldest, context: healthy(layer, 0, oldest, context)[: context - first]


class WindowOffByOne(Wrapped):
    """Sees one position more than the window."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        window = None if layer.window is None else layer.window + 1
        return self.inner.forward(replace(layer, window=window), q, k, v, kv, plan, out)


class ScaleForgotten(Wrapped):
    """Always divides by the root of head_dim, whatever the layer says."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        return self.inner.forward(replace(layer, scale=self.need.head_dim**-0.5), q, k, v, kv, plan, out)


class SoftcapIgnored(Wrapped):
    """Leaves the logits unbounded."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        return self.inner.forward(replace(layer, softcap=None), q, k, v, kv, plan, out)


class HeadsInterleaved(Wrapped):
    """Query head h reads key-value head h % kv_heads; right without grouping and with one key-value head."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        group = self.need.num_heads // self.need.num_kv_heads
        shuffled = q.unflatten(1, (group, -1)).transpose(1, 2).flatten(1, 2)
        result = out.clone()
        lse = self.inner.forward(layer, shuffled, k, v, kv, plan, result)
        out.copy_(result.unflatten(1, (-1, group)).transpose(1, 2).flatten(1, 2))
        return lse


class TailIncluded(Wrapped):
    """Multiplies what lies behind a sequence in its last block by zero, instead of leaving it out."""

    def plan(self, batch: Batch) -> Any:
        return (self.inner.plan(batch), batch)

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        inner_plan, batch = plan
        lse = self.inner.forward(layer, q, k, v, kv, inner_plan, out)
        for index in range(batch.num_seqs):
            last, used = divmod(int(batch.seq_lens[index]) - 1, self.need.block_size)
            tail = kv[1, int(batch.tables[batch.rows[index], last]), used + 1 :]
            out[batch.query_start[index] : batch.query_start[index + 1]] += (tail * 0).sum().to(out.dtype)
        return lse


class SlotOfThePositionBefore(Wrapped):
    """Writes every token one slot too low."""

    def plan(self, batch: Batch) -> Any:
        return self.inner.plan(replace(batch, slots=batch.slots - 1))


class NegativeSlotsWrapAround(Wrapped):
    """Takes slot -1 for the last slot of the pool, as an index does."""

    def plan(self, batch: Batch) -> Any:
        plan = self.inner.plan(batch)
        import torch

        return replace(plan, slots=torch.from_numpy(batch.slots.copy()), written=None)


class WritesTheNextBlockToo(Wrapped):
    """Writes each token a second time, into the block behind its own."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        lse = self.inner.forward(layer, q, k, v, kv, plan, out)
        slots = plan.slots + self.need.block_size
        fits = slots < kv.shape[1] * self.need.block_size
        kv[0].flatten(0, 1)[slots[fits]] = k[: len(slots)][fits].to(kv.dtype)
        return lse


class ValuesWrittenAsKeys(Wrapped):
    """Stores v in both places."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        return self.inner.forward(layer, q, v, v, kv, plan, out)


class StridesIgnored(Wrapped):
    """Takes every input for contiguous."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        q, k, v = (x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)) for x in (q, k, v))
        return self.inner.forward(layer, q, k, v, kv, plan, out)


class OffsetsOf32Bits(Wrapped):
    """Computes where an element lies in 32 bits."""

    def plan(self, batch: Batch) -> Any:
        plan = self.inner.plan(batch)
        row = self.need.num_kv_heads * self.need.head_dim
        wrapped = (plan.slots * row + 2**31) % 2**32 - 2**31
        return replace(plan, slots=wrapped // row)


class CopiesTheFirstLayerOnly(Wrapped):
    """Copies blocks in layer 0 and forgets the rest."""

    def copy_blocks(self, caches: Any, copies: Any) -> None:
        self.inner.copy_blocks(caches[:1], copies)


class CopiesTheFirstPairOnly(Wrapped):
    """Copies one block however many are asked for."""

    def copy_blocks(self, caches: Any, copies: Any) -> None:
        self.inner.copy_blocks(caches, copies[:1])


class SwapPairsReversed(Wrapped):
    """Takes the target of a swap for its source."""

    def swap_blocks(self, sources: Any, targets: Any, pairs: Any) -> None:
        self.inner.swap_blocks(sources, targets, [type(pair)(pair.dst, pair.src) for pair in pairs])


class LseWithoutTheMaximum(Wrapped):
    """Returns the log of the softmax's denominator and forgets the largest logit that was subtracted from it."""

    def __init__(self, inner: Any, need: AttentionNeed) -> None:
        super().__init__(inner, need)
        healthy = inner._attend

        def attend(layer: Any, tile: Any, q: Any, cache: Any, out: Any, lse: Any) -> None:
            healthy(layer, tile, q, cache, out, lse)
            if lse is not None:
                context, group = len(tile.key_slots), need.num_heads // need.num_kv_heads
                keys = cache[0][tile.key_slots].float().repeat_interleave(group, 1)
                logits = (q[tile.begin : tile.end].float().transpose(0, 1) @ keys.permute(1, 2, 0)) * layer.scale
                logits = logits.masked_fill(inner._hidden(layer, tile.first, 0, context), float("-inf"))
                lse[tile.begin : tile.end] -= logits.amax(-1).transpose(0, 1)

        inner._attend = attend


class NeighboursChangeBits(Wrapped):
    """Rounds by the number of sequences in the batch."""

    def plan(self, batch: Batch) -> Any:
        return (self.inner.plan(batch), batch.num_seqs)

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        scale = layer.scale * (1 + 2.0**-22 * plan[1])
        return self.inner.forward(replace(layer, scale=scale), q, k, v, kv, plan[0], out)


class SharesABlockTooMany(Wrapped):
    """Takes the block behind a shared prefix for shared as well."""

    def plan(self, batch: Batch) -> Any:
        tables = batch.tables.copy()
        for rows, num_blocks in batch.shared_prefixes:
            tables[rows, : num_blocks + 1] = tables[rows[0], : num_blocks + 1]
        return self.inner.plan(replace(batch, tables=tables))


class RotatesWithAWrongSign(Wrapped):
    """Declares fused_rope and gets one of the rotation's four signs wrong."""

    sign = -1.0

    def plan(self, batch: Batch) -> Any:
        return (self.inner.plan(batch), batch)

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        inner_plan, batch = plan
        if layer.rope >= 0:
            q, k = (self.rotated(x, *batch.rope[layer.rope]) for x in (q, k))
        return self.inner.forward(layer, q, k, v, kv, inner_plan, out)

    def rotated(self, x: Any, cos: Any, sin: Any) -> Any:
        import torch

        half = cos.shape[-1]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat([first * cos - second * sin, second * cos + self.sign * first * sin, rest], -1).to(x.dtype)


class RotatesEveryLayer(RotatesWithAWrongSign):
    """Rotates as it should, and also in layers that have no rotary positions."""

    sign = 1.0

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        return super().forward(replace(layer, rope=0), q, k, v, kv, plan, out)


class CodesOfSixBits(Wrapped):
    """A cache of uint8 that uses every fourth code only."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        if self.need.kv_dtype == "uint8":
            least = v.amin(-1, keepdim=True)
            step = (v.amax(-1, keepdim=True) - least).clamp_min(1e-30) / 63
            v = least + step * ((v - least) / step).round()
        return self.inner.forward(layer, q, k, v, kv, plan, out)


class OneScaleForAStep(Wrapped):
    """Codes of all rows of a step have the step of the widest."""

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, out: Any) -> Any:
        if self.need.kv_dtype == "uint8":
            step = (k.amax() - k.amin()).clamp_min(1e-30) / 255
            k = (k / step).round() * step
        return self.inner.forward(layer, q, k, v, kv, plan, out)


class CopiesCodesOnly(Wrapped):
    """A copied block of codes keeps the scales that lay there before."""

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[BlockCopy]) -> None:
        if self.need.kv_dtype == "uint8":
            caches = [cache[..., : self.need.head_dim] for cache in caches]
        self.inner.copy_blocks(caches, copies)


class MutantProvider(Provider[AttentionNeed, Attention]):
    """Offers one mutant; it declares what attn_torch declares, `more` besides and `fewer` left out."""

    kind = "attn"
    api = 1
    priority = -1

    def __init__(self, name: str, mutant: type[Wrapped], more: str = "", fewer: str = "") -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        self.capabilities = (DECLARED | {more}) - {fewer, ""}  # type: ignore[misc]

        self._mutant = mutant

    def probe(self, need: AttentionNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: AttentionNeed, settings: PluginSettings, plugins: PluginRegistry) -> Attention:
        inner_need = replace(need, required=need.required & DECLARED)
        return self._mutant(plugins.create("attn", "attn_torch", inner_need), need)


class AcceptsAnything(MutantProvider):
    """Says yes to every need, what it does not declare included."""

    def probe(self, need: AttentionNeed) -> Fit:
        return Fit(True)


PROVIDERS = [
    MutantProvider("attn_table_off_by_one", TableOffByOne),
    MutantProvider("attn_no_mask", CausalMaskIgnored),
    MutantProvider("attn_chunk_at_zero", ChunkForgetsItsPrefix),
    MutantProvider("attn_window_off_by_one", WindowOffByOne),
    MutantProvider("attn_no_scale", ScaleForgotten),
    MutantProvider("attn_no_softcap", SoftcapIgnored),
    MutantProvider("attn_heads_interleaved", HeadsInterleaved),
    MutantProvider("attn_tail_included", TailIncluded),
    MutantProvider("attn_slot_before", SlotOfThePositionBefore),
    MutantProvider("attn_negative_slots", NegativeSlotsWrapAround),
    MutantProvider("attn_next_block_too", WritesTheNextBlockToo),
    MutantProvider("attn_values_as_keys", ValuesWrittenAsKeys),
    MutantProvider("attn_no_strides", StridesIgnored),
    MutantProvider("attn_offsets_32", OffsetsOf32Bits),
    MutantProvider("attn_copy_first_layer", CopiesTheFirstLayerOnly),
    MutantProvider("attn_copy_first_pair", CopiesTheFirstPairOnly),
    MutantProvider("attn_swap_reversed", SwapPairsReversed),
    MutantProvider("attn_lse_no_maximum", LseWithoutTheMaximum),
    MutantProvider("attn_neighbours", NeighboursChangeBits),
    MutantProvider("attn_shares_too_much", SharesABlockTooMany),
    MutantProvider("attn_rope_sign", RotatesWithAWrongSign, more="fused_rope"),
    MutantProvider("attn_rope_everywhere", RotatesEveryLayer, more="fused_rope"),
    MutantProvider("attn_codes_coarse", CodesOfSixBits),
    MutantProvider("attn_codes_one_scale", OneScaleForAStep),
    MutantProvider("attn_codes_copied_alone", CopiesCodesOnly),
    AcceptsAnything("attn_accepts_anything", Wrapped, fewer="softcap"),
]


@hookimpl
def paged_attention() -> list[MutantProvider]:
    return PROVIDERS
