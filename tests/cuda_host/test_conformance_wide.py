"""The conformance suite over the checked emulation: shapes in float32 and bfloat16."""

from __future__ import annotations

import pytest
from cuda_emulation import parts


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_part_of_the_suite(name: str) -> None:
    parts.check(parts.PARTS[name])
