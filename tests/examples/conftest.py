"""A fresh virtual environment with wheels of paged-core and of both examples, and nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from paged_core.testing.tiny import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FRESH = ("PYTHON", "PAGED_", "PYTEST_", "COVERAGE", "VIRTUAL_ENV")  # variables the stranger's shell does not have


@dataclass(frozen=True)
class Environment:
    """An installed Python; `site` is a folder searched behind site-packages, for fake installations."""

    folder: Path
    work: Path
    site: Path | None = None

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of this environment (`paged-core ...`, `python ...`), in a folder far from the checkout."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FRESH)}
        clean |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"}
        clean |= {"PAGED_CACHE_DIR": str(self.folder / "cache"), **variables}
        if self.site is not None:
            clean["PYTHONPATH"] = str(self.site)
        program = str(self.folder / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]], cwd=self.work, env=clean, capture_output=True, text=True, check=False
        )

    def ok(self, *command: str, **variables: str) -> str:
        """Standard output of a command that must succeed."""
        result = self.run(*command, **variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def with_site(self, site: Path) -> Environment:
        """The same with fake installations."""
        return replace(self, site=site)


def build_wheel(folder: Path, out: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def borrow_dependencies(target: Path) -> None:
    """Links to everything installed here but ours, so that torch need not be installed a second time.

    The editable installation of the checkout works through a .pth file and a dist-info folder of its own: neither is
    linked, and .pth files of a folder that is itself named in a .pth file are not read.
    """
    target.mkdir()
    for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(path).iterdir():
            ours = entry.name.lower().lstrip("_").startswith("paged")
            if not ours and entry.suffix != ".pth" and not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    base = tmp_path_factory.mktemp("stranger")
    wheels, folder, work = base / "wheels", base / "venv", base / "work"
    for source in (ROOT, EXAMPLES / "paged-sched-sjf", EXAMPLES / "paged-attn-numpy"):
        build_wheel(source, wheels)
    venv.create(folder, with_pip=False, symlinks=True)
    work.mkdir()
    borrow_dependencies(base / "borrowed")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{base / 'borrowed'}\n")
    python = str(folder / "bin/python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"]
    result = subprocess.run([*install, *map(str, wheels.glob("*.whl"))], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    write_tiny_llama(work / "model")
    return Environment(folder, work)
