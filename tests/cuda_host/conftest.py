"""Makes the emulation importable, and skips this folder's tests with the reason where there is no compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from cuda_emulation import COMPILER_MISSING, HostLauncher  # noqa: E402


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    if COMPILER_MISSING is not None:
        pytest.skip(COMPILER_MISSING)


@pytest.fixture
def launcher() -> HostLauncher:
    """Runs the kernels beside these tests."""
    return HostLauncher(FOLDER / "kernels")
