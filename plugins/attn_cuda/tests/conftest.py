"""The backend over the emulation of CUDA on the host, which lies in the checkout beside the plugins."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_attn_cuda.backend import CudaAttention

EMULATION = Path(__file__).resolve().parents[3] / "tests" / "cuda_host"


@pytest.fixture(scope="session")
def host() -> Any:
    """The module `cuda_emulation`; skipped where this is not a checkout, or without a compiler."""
    if not EMULATION.is_dir():
        pytest.skip(f"the emulation of CUDA is not here: there is no {EMULATION}")
    if str(EMULATION) not in sys.path:
        sys.path.insert(0, str(EMULATION))
    import cuda_emulation

    if cuda_emulation.COMPILER_MISSING is not None:
        pytest.skip(cuda_emulation.COMPILER_MISSING)
    return cuda_emulation


@pytest.fixture
def launcher(host: Any) -> Any:
    """Runs the kernels of attn_cuda on the CPU; it notes what was launched."""
    return host.HostLauncher()


@pytest.fixture
def backend(launcher: Any) -> Callable[..., CudaAttention]:
    """Makes a backend over `launcher` for a small need with the given changes."""
    from paged_attn_cuda.backend import CudaAttention

    from paged_core.api.attention import AttentionNeed

    need = AttentionNeed("cpu", "float32", "float32", 4, 2, 64, 16, max_len=4096, max_rows=8, token_budget=256)

    def make(**changes: Any) -> CudaAttention:
        return CudaAttention(replace(need, **changes), launcher)

    return make
