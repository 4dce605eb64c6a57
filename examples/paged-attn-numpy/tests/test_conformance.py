"""attn_numpy is conformant: the suite in a process of its own, whose verdict is its exit code."""

from __future__ import annotations

import subprocess
import sys


def test_it_is_conformant() -> None:
    """Fewer examples than a published report needs; `paged-core conformance` without --quick runs them all."""
    suite = ("-m", "pytest", "--pyargs", "paged_conformance.suite", "-p", "no:cacheprovider")
    command = [sys.executable, *suite, "--paged-attn=attn_numpy", "--paged-quick"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
