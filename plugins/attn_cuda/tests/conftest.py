"""The backend over the emulation of CUDA on the host, which lies in the checkout beside the plugins, or on a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from paged_core.api.attention import AttentionNeed

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
def host_backend(launcher: Any) -> Callable[..., CudaAttention]:
    """Makes a backend over `launcher` for a small need with the given changes."""
    return partial(_made, launcher, "cpu")


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Callable[..., CudaAttention]:
    """The same twice: in the emulation, and on a GPU where there is one."""
    if request.param == "host":
        return partial(_made, request.getfixturevalue("launcher"), "cpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: this runs the kernels on one")
    from paged_attn_cuda.driver import DeviceLauncher

    return partial(_made, DeviceLauncher.create(None, None), "cuda")


def _made(launcher: Any, device: str, **changes: Any) -> CudaAttention:
    from paged_attn_cuda.backend import CudaAttention

    need = AttentionNeed(device, "float32", "float32", 4, 2, 64, 16, max_len=4096, max_rows=8, token_budget=256)
    return CudaAttention(replace(need, **changes), launcher)
