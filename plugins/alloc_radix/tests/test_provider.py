"""RadixProvider: fitness, and what its import costs."""

from __future__ import annotations

import subprocess
import sys

from paged_alloc_radix import RadixProvider

from paged_core.api.allocator import AllocatorNeed


def test_it_fits_block_sizes_up_to_256_and_tells_why_not():
    provider = RadixProvider()
    assert provider.probe(AllocatorNeed(0, 0, 16, 8, 64)).ok
    fit = provider.probe(AllocatorNeed(-1, 0, 512, 8, 64, required=frozenset({"reserves_ahead"})))
    assert len(fit.reasons) == 3


def test_importing_it_loads_no_heavy_library():
    code = "import sys, paged_alloc_radix; print({'torch', 'triton', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
