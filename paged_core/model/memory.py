"""Memory that loading took and no longer needs goes back to the system."""

from __future__ import annotations

import ctypes
import sys


def release_free_memory() -> None:
    """Return the C allocator's free pages. After loading SmolLM2 with int8 weights that is 350 MB of 975 resident ones;
    only glibc keeps so much, and only glibc has the call."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
