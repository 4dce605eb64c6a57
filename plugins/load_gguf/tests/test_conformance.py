"""The conformance suite judges load_gguf by a small file, which it cannot write itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("paged_conformance", reason="the conformance suite is not installed")


def test_load_gguf_is_conformant_on_a_small_file(files, tmp_path):
    sample, report = files.llama(), tmp_path / "report.json"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--pyargs", "paged_conformance.suite", "--paged-loader=load_gguf", "--paged-quick"]
    command += [f"--paged-loader-sample={sample}", f"--paged-report={report}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    judged = json.loads(report.read_text())["plugins"]
    assert [(plugin["name"], plugin["verdict"]) for plugin in judged] == [("load_gguf", "conformant")]
