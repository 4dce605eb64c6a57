"""What numba's disk cache knows native functions by must be the same in every process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_core.native.products import product_function, quantize_function

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    "function",
    [product_function(False, "digest"), product_function(True, "digest"), quantize_function("digest")],
    ids=["pairs", "quads", "quantize"],
)
def test_closures_hold_plain_values_alone(function: Callable[..., object]) -> None:
    """A compiled function in the closure is pickled with a number of this process: the cache would never be hit."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    assert "digest" in held
    assert all(isinstance(value, bool | int | str | type) for value in held)
