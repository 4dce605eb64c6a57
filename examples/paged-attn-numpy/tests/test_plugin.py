"""attn_numpy is registered and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_conformance.candidate import Candidate

HEAVY = ["torch", "triton", "numba"]


def test_it_is_what_its_name_says(attn: Candidate) -> None:
    """The fixture is the registered plugin, as the suite sees it."""
    assert (attn.name, attn.record.dist) == ("attn_numpy", "paged-attn-numpy")
    assert attn.provider.kind == "attn"


def test_importing_it_is_light() -> None:
    """Listing plugins must not wait for anything heavy."""
    code = f"import sys, paged_attn_numpy; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
