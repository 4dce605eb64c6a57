"""EngineConfig: the facts an engine runs with. Nothing is `auto` here; it is written once and printed at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paged_core.api.sampler import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.api.sampler import LogprobsMode

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Facts. Sizes in tokens, blocks or bytes as the names say."""

    model: str
    architecture: str
    vocab_size: int
    device: str
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    num_host_blocks: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int
    token_budget: int
    chunked_prefill: bool
    prefix_cache: bool
    num_ranks: int = 1  # block_bytes is what all of them together keep of a block
    seed: int | None = None
    audit: bool = False
    quantization: str = "none"
    logprobs_mode: LogprobsMode = "raw_logprobs"
    max_logprobs: int = 50  # -1 = the whole vocabulary
    sampler_capabilities: frozenset[str] = CAPABILITIES
    structured_backend: str = "auto"
    structured_timeout: float = 10.0  # seconds to compile one grammar
    structured_memory: int = 1 << 30  # bytes to compile one grammar
    structured_cache: int = 1 << 28  # bytes of compiled grammars kept
    jump_forward: bool = True
    plugins: Mapping[str, str] = field(default_factory=dict)
    """kind -> provider name"""

    @property
    def kv_tokens(self) -> int:
        """Tokens the device pool holds."""
        return self.num_blocks * self.block_size

    def describe(self) -> list[str]:
        """The lines printed at start."""
        chosen = "  ".join(f"{kind}={name}" for kind, name in self.plugins.items())
        pool = self.num_blocks * self.block_bytes / _GIB
        host = self.num_host_blocks * self.block_bytes / _GIB
        types = self.dtype if self.quantization == "none" else f"{self.dtype} with {self.quantization} weights"
        lines = [
            f"{self.model}: {self.architecture}, {types} on {self.device}, up to {self.max_model_len} tokens",
            (
                f"KV pool: {self.kv_tokens:,} tokens = {self.num_blocks:,} blocks of {self.block_size} "
                f"({pool:.2f} GiB {self.kv_dtype}), swap {self.num_host_blocks:,} blocks ({host:.2f} GiB)"
            ),
            (
                f"steps: up to {self.token_budget} tokens and {self.max_num_seqs} sequences, "
                f"chunked prefill {_on(self.chunked_prefill)}, prefix cache {_on(self.prefix_cache)}"
            ),
            f"plugins: {chosen}",
        ]
        if self.num_ranks > 1:
            lines.insert(
                2, f"tensor parallel: {self.num_ranks} ranks, each with {pool / self.num_ranks:.2f} GiB of the pool"
            )
        if self.kv_tokens < self.max_model_len:
            lines.append(
                f"note: the KV pool holds {self.kv_tokens:,} tokens, fewer than max_model_len {self.max_model_len:,}: "
                "longer requests end early or are refused"
            )
        return lines


def _on(flag: bool) -> str:
    return "on" if flag else "off"
