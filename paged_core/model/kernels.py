"""load_kernels: compile, or load from the cache, what a model will call, before its weights are there.

The compiler takes 25 MB of code pages and, when it really compiles, 200 MB more: beside the weights they would set the
peak of the whole process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.model.fused import fused_for
from paged_core.model.linear import Linears

if TYPE_CHECKING:
    from paged_core.model.place import Place


def load_kernels(place: Place) -> None:
    """Load those of a model at `place`; they stay loaded as long as the process lives.

    Raises ConfigError where no linear layer serves.
    """
    if place.device.type == "cpu":
        fused_for(place.device, place.dtype)
    if not Linears(place).are_native:
        return
    from paged_core.native.matrix import compiled_products
    from paged_core.native.sequence import Sequence
    from paged_core.native.team import Team

    compiled_products()
    Sequence(Team(1))
