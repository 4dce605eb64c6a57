"""Transfers: seconds of moving KV blocks between the tiers, and of copying them on the device.

Swapping a block moves a key and a value chunk in every layer, each by a call of its own: small blocks are bound by
calls, large ones by the link (PagedAttention paper, section 7.3 and figure 19). 2.2 us a call and 25 GB/s were inferred
from its curves: 320 tokens of OPT-13B out and in take 135 ms in blocks of one token and some 20 ms in large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

CALL_S = 2.2e-6
LINK_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class Transfers:
    """`chunks_per_block`: keys or values of one block in one layer. `memory_bytes_per_s`: of the device, for copies."""

    block_bytes: int
    chunks_per_block: int
    memory_bytes_per_s: float
    call_s: float = CALL_S
    link_bytes_per_s: float = LINK_BYTES_PER_S

    def swap_s(self, num_blocks: int) -> float:
        """Seconds of moving `num_blocks` blocks one way."""
        return num_blocks * (self.chunks_per_block * self.call_s + self.block_bytes / self.link_bytes_per_s)

    def copy_s(self, num_blocks: int) -> float:
        """Seconds of copying `num_blocks` blocks on the device: read once, written once, one call a chunk and step."""
        if not num_blocks:
            return 0.0
        return self.chunks_per_block * self.call_s + num_blocks * 2 * self.block_bytes / self.memory_bytes_per_s
