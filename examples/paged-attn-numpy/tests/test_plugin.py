"""attn_numpy is registered, imports nothing heavy, and is conformant."""

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
    result = run("-c", f"import sys, paged_attn_numpy; print([name for name in {HEAVY} if name in sys.modules])")
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_it_is_conformant() -> None:
    """The suite, in a process of its own: its verdict is its exit code."""
    suite = ("--pyargs", "paged_conformance.suite", "--paged-attn", "attn_numpy", "--paged-quick")
    result = run("-m", "pytest", "-p", "no:cacheprovider", *suite)
    assert result.returncode == 0, result.stdout + result.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This Python with `arguments`."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
