"""attn_torch: the plain reference attention in torch, for any device; what other backends are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.attention import AttentionNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_core.api.attention import Attention

_DTYPES = ("float32", "bfloat16", "float16")
_KV_DTYPES = (*_DTYPES, "uint8", "float8_e4m3fn")
_MAX_BLOCK_SIZE = 256


class TorchAttentionProvider(Provider[AttentionNeed, "Attention"]):
    """Gathers each sequence's keys and values and attends in float32, one sequence after the other."""

    name = "attn_torch"
    kind = "attn"
    api = 1
    priority = 0
    summary = "plain torch reference, any device: right before fast"
    capabilities = frozenset(
        {"sliding_window", "softcap", "lse", "batch_invariant", "fp32", "bf16", "fp16", "u8", "fp8", "swap"},
    )

    def probe(self, need: AttentionNeed) -> Fit:
        """Every device, head size and window; three float types, caches of uint8 and e4m3 too; blocks of 1 to 256."""
        reasons = self.missing_capabilities(need.required)
        for label, dtype, known in (
            ("activations", need.dtype, _DTYPES),
            ("keys and values", need.kv_dtype, _KV_DTYPES),
        ):
            if dtype not in known:
                reasons.append(f"attn_torch does not handle {label} of type {dtype}, only {', '.join(known)}")
        if not 1 <= need.block_size <= _MAX_BLOCK_SIZE:
            reasons.append(f"block size {need.block_size} is outside 1..{_MAX_BLOCK_SIZE}")
        if need.num_kv_heads < 1 or need.num_heads % need.num_kv_heads:
            reasons.append(f"{need.num_heads} query heads cannot share {need.num_kv_heads} key-value heads evenly")
        return Fit.judge(reasons)

    def create(self, need: AttentionNeed, settings: PluginSettings, plugins: PluginRegistry) -> Attention:
        """Build the backend; it owns no memory between steps."""
        from paged_attn_torch.attention import TorchAttention

        return TorchAttention(need)


@hookimpl
def paged_attention() -> TorchAttentionProvider:
    """Register attn_torch."""
    return TorchAttentionProvider()
