"""Every kernel of attn_cuda compiles for sm_90 within its row of the table. A file each: they run side by side."""

from __future__ import annotations

import pytest
from paged_attn_cuda.toolchain import find_toolchain

pytestmark = pytest.mark.skipif(find_toolchain().reasons != (), reason="; ".join(find_toolchain().reasons))


@pytest.mark.slow
def test_kernels_take_no_more_than_the_table_says(hold) -> None:
    hold("attn_cuda", "sm_90")
