"""ContiguousAllocator: how much each sequence reserves (paper, section 6.1, "Orca (Oracle / Pow2 / Max)")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.paging.runs import RunAllocator

if TYPE_CHECKING:
    from paged_core.api.allocator import AllocatorNeed
    from paged_core.api.request import Request


class ContiguousAllocator(RunAllocator):
    """Prompt plus output, of which "max", "oracle" and "pow2" know nothing, everything and the power of two."""

    def __init__(self, need: AllocatorNeed, reservation: str) -> None:
        super().__init__(need)
        self._reservation = reservation

    def reserve(self, request: Request) -> int:
        """Slots for the prompt and the output expected; no more than the model's length."""
        prompt = len(request.prompt_token_ids)
        room = self.max_len - prompt
        output = room
        if self._reservation != "max":
            known = request.true_output_len
            announced = request.params.max_tokens if known is None else known
            output = room if announced is None else announced
        if self._reservation == "pow2":
            output = 1 << (output - 1).bit_length()  # 25 -> 32
        return prompt + min(output, room)
