"""The conformance suite over the checked emulation: heads, windows, chunks, laws."""

from __future__ import annotations

import pytest
from cuda_emulation import parts


@pytest.mark.parametrize("name", ["attention", "laws"])
def test_part_of_the_suite(name: str) -> None:
    parts.check(parts.PARTS[name])
