"""The conformance suite over the checked emulation: shapes in float16 and with caches of e4m3."""

from __future__ import annotations

import pytest
from cuda_emulation import parts


@pytest.mark.parametrize("name", ["fp16", "fp8"])
def test_part_of_the_suite(name: str) -> None:
    parts.check(parts.PARTS[name])
