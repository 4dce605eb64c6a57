"""The kernels on a GPU: the whole suite, our numerics, and a captured step that is replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paged_core.device.presence import cuda_presence

PRESENCE = cuda_presence()
NUMERICS = sorted((Path(__file__).parent / "numerics").glob("check_*.py"))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(PRESENCE.reasons), reason="; ".join(PRESENCE.reasons) or "there is a GPU"),
]


def compiled(*arguments: str) -> None:
    """Run pytest in a process that compiles kernels, whatever this one does."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"


@pytest.mark.timeout(3600)
def test_the_suite_finds_it_conformant(tmp_path):
    """Captured and replayed batches of decodes are among its tests."""
    report = tmp_path / "report.json"
    compiled(
        "--pyargs", "paged_conformance.suite", "--paged-attn=attn_triton", "--paged-device=cuda",
        f"--paged-report={report}",
    )  # fmt: skip
    assert json.loads(report.read_text())["verdict"] == "conformant"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NUMERICS, ids=lambda path: path.stem)
def test_numerics(path):
    compiled(str(path))
