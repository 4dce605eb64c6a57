"""Shape: what a backend is bound to, and the compile-time constants of every kernel that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from paged_attn_triton.configs import Config, decode_config, padded, prefill_config
from paged_core.device.fitness import ELEMENT_BYTES, FP8

if TYPE_CHECKING:
    from paged_core.api.attention import AttentionNeed

SEARCH = 256  # starts of sequences that a tile of prefill reads at once to find its own
MERGED_PARTS = 16
COPIED_WORDS = 2048
_FIRST_WITH_E4M3 = 89


@dataclass(frozen=True)
class Shape:
    """Sizes and types of one need, on a device of a compute capability such as 90 (0 = Triton's interpreter).

    A choice takes the place of the rule's; that of prefill serves layers without window and softcap.
    """

    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    capability: int
    decode_choice: Config | None = None
    prefill_choice: Config | None = None

    @staticmethod
    def of(need: AttentionNeed, capability: int) -> Shape:
        """The shape of a need."""
        return Shape(
            need.dtype,
            need.kv_dtype,
            need.num_heads,
            need.num_kv_heads,
            need.head_dim,
            need.block_size,
            capability,
        )

    @cached_property
    def in_codes(self) -> bool:
        """Whether the cache holds e4m3, which kernels handle as bytes."""
        return self.kv_dtype == FP8

    @cached_property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @cached_property
    def width(self) -> int:
        """The power of two that holds a head."""
        return padded(self.head_dim)

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block: keys and values of all KV heads."""
        return 2 * self.num_kv_heads * self.block_size * self.head_dim * ELEMENT_BYTES[self.kv_dtype]

    @cached_property
    def by_hardware(self) -> bool:
        """Whether the device widens e4m3 by itself."""
        return self.in_codes and self.capability >= _FIRST_WITH_E4M3

    @cached_property
    def decode_config(self) -> Config:
        """How decode is cut."""
        return self.decode_choice or decode_config(self)

    @cached_property
    def queries_per_tile(self) -> int:
        """Queries in a tile of prefill."""
        return prefill_config(self, True).rows // self.group

    @cached_property
    def tokens_per_write(self) -> int:
        """Tokens of one head that a program of the write kernel takes: 16 bytes a thread, of 4 warps."""
        return 256 if not self.capability else max(1, 1024 // self.width)

    def write_constants(self, half: int) -> dict[str, object]:
        """`half`: elements that are rotated with as many others; 0 = no rotation."""
        return {
            "NUM_HEADS": self.num_heads,
            "NUM_KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "WIDTH": self.width,
            "BLOCK_SIZE": self.block_size,
            "IN_CODES": self.in_codes,
            "HALF": half,
            "HALF_WIDTH": padded(max(half, 1)),
            "TILE_TOKENS": self.tokens_per_write,
        }

    def decode_constants(self, has_window: bool, has_softcap: bool) -> dict[str, object]:
        """Of decode."""
        return self._attend_constants(self.decode_config, has_window, has_softcap)

    def prefill_constants(self, has_window: bool, has_softcap: bool) -> dict[str, object]:
        """Of prefill."""
        config = self.prefill_config(has_window, has_softcap)
        return self._attend_constants(config, has_window, has_softcap) | {"SEARCH": SEARCH}

    def prefill_config(self, has_window: bool, has_softcap: bool) -> Config:
        """How prefill is cut."""
        plain = not (has_window or has_softcap)
        return (plain and self.prefill_choice) or prefill_config(self, plain)

    def _attend_constants(self, config: Config, has_window: bool, has_softcap: bool) -> dict[str, object]:
        return {
            "NUM_HEADS": self.num_heads,
            "NUM_KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "WIDTH": self.width,
            "BLOCK_SIZE": self.block_size,
            "IN_CODES": self.in_codes,
            "BY_HARDWARE": self.by_hardware,
            "WIDENED": self.dtype == "bfloat16" and not self.capability,  # the interpreter multiplies the bits of bf16
            "HAS_WINDOW": has_window,
            "HAS_SOFTCAP": has_softcap,
            "ROWS": config.rows,
            "TILE": config.tile,
        }

    def merge_constants(self, has_window: bool) -> dict[str, object]:
        """Of the merge of decode's parts."""
        return {
            "NUM_HEADS": self.num_heads,
            "HEAD_DIM": self.head_dim,
            "WIDTH": self.width,
            "HAS_WINDOW": has_window,
            "TILE": self.decode_config.tile,
            "PARTS": MERGED_PARTS,
        }

    def copy_constants(self) -> dict[str, object]:
        """Of copies of blocks."""
        return {"WORDS": self.block_bytes // 4, "CHUNK": COPIED_WORDS}
