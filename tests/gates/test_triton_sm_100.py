"""Kernels of attn_triton compile for sm_100 within their rows of the table. A file each: they run side by side."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="there is no triton for this system")


@pytest.mark.slow
def test_kernels_take_no_more_than_the_table_says(hold) -> None:
    hold("attn_triton", "sm_100")
