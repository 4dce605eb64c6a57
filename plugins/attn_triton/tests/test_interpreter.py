"""The kernels on the CPU, in Triton's interpreter: the conformance suite and numerics of our own, every time.

A process interprets all kernels or compiles them, as TRITON_INTERPRET says when Triton is imported; hence a process
each. They cover the whole suite between them, cut into pieces that parallel workers can take: five minutes of one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import paged_conformance.suite
import pytest

pytest.importorskip("triton", reason="there is no triton for this system")

NUMERICS = sorted((Path(__file__).parent / "numerics").glob("check_*.py"))
SUITE = sorted(Path(paged_conformance.suite.__file__).parent.glob("test_*.py"))
SHAPES, MODEL = "test_attention.py", "test_engine_model.py"
LAWS = ("test_attention_laws.py", "test_attention_graphs.py")
OTHERS = tuple(path.name for path in SUITE if path.name not in {SHAPES, MODEL, *LAWS})
PIECES: dict[str, tuple[tuple[str, ...], str, int]] = {
    "shapes": ((SHAPES,), "every_accepted_shape", 240),
    "layers": ((SHAPES,), "not every_accepted_shape", 35),
    "model": ((MODEL,), "", 6),
    "laws": (LAWS, "", 32),
    "rest": (OTHERS, "", 84),
}
"""Files of the suite, which of their tests, and the least number of them that judges an attention backend."""


def interpreted(*arguments: str) -> str:
    """Run pytest with Triton's interpreter; what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRITON"))}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("piece", PIECES)
def test_the_suite_finds_nothing(piece: str, tmp_path: Path) -> None:
    files, which, least = PIECES[piece]
    report = tmp_path / "report.json"
    paths = [str(path) for path in SUITE if path.name in files]
    options = ["--paged-attn", "attn_triton", "--paged-quick", "--paged-report", str(report)]
    interpreted(*paths, *options, *(["-k", which] if which else []))
    (judged,) = json.loads(report.read_text())["plugins"]
    outcomes: dict[str, Any] = {name: test["outcome"] for name, test in judged["tests"].items()}
    assert judged["name"] == "attn_triton"
    assert set(outcomes.values()) == {"passed"}
    assert len(outcomes) >= least, f"only {len(outcomes)} tests judged it; there were {least}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NUMERICS, ids=lambda path: path.stem)
def test_numerics(path: Path) -> None:
    interpreted(str(path))
