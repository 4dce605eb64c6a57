"""`paged-core bench peers`: ours really runs, the peer pretends."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from paged_core.bench.peers import Contest
from paged_core.cli import main
from paged_core.testing import tiny

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from paged_core.bench.peers import Contestant, Runs

PEER = """#!{python}
import json, sys
requests = json.load(open(json.load(open(sys.argv[2]))["workload"]))["requests"]
result = dict(engine="fake 1", load_s=1, first_s=9, decode_per_s=1e-3, prefill_per_s=1, mixed_s=1e3, peak_bytes=None)
result.update(output_tokens=10, others=dict(mixed=0, single=None), floor=None)
result.update(tokens=[[0] * r["out"] for r in requests])
json.dump(result, open(sys.argv[3], "w"))
"""


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "peers", *arguments])


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "work.json"
    requests = [{"prompt": [5, 6, 7], "out": 4}, {"prompt": [8] * 20, "out": 6}]
    path.write_text(json.dumps({"requests": requests}))
    return str(path)


@pytest.mark.slow
def test_ours_runs_beside_a_peer(tmp_path: Path, workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.CONFIG, "max_position_embeddings", 2048)
    python, model, folder = tmp_path / "python", tmp_path / "exported", tmp_path / "model"
    model.mkdir()
    python.write_text(PEER.format(python=sys.executable))
    python.chmod(0o755)
    files = ("--json", str(tmp_path / "x.json"), "--markdown", str(tmp_path / "x.md"))
    options = ("--ours", "bf16", "--threads", "1", "--rounds", "1", "--workload", workload, *files)
    engine = ("--model", str(tiny.write_tiny_llama(folder)), "--kv-memory", "64MiB")
    result = bench("--openvino", f"{python}:{model}", *options, *engine)
    assert result.exit_code == 0, result.stderr
    content = json.loads((tmp_path / "x.json").read_text())
    engines, ratios, floors, agreement, _ = (table["rows"] for table in content["tables"])
    assert [row["engine"] for row in engines] == ["paged-core bf16", "OpenVINO GenAI bf16"]
    assert engines[0]["peak_mib"] > 50
    assert {row["verdict"] for row in ratios if row["goal"]} == {"met"}
    assert len(floors) == 3
    assert agreement[0]["requests"] == 2
    assert "| OpenVINO GenAI bf16 | fake 1 |" in (tmp_path / "x.md").read_text()


def test_no_peer_or_a_wrong_workload_is_a_clear_error(tmp_path: Path) -> None:
    peer = ("--openvino", f"{sys.executable}:{tmp_path}")
    for arguments, message in (
        ((), "no peer was named: --openvino"),
        ((*peer, "--workload", "/none.json"), "/none.json"),
    ):
        result = bench(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr


def test_two_rounds_of_a_workload_that_is_made_up_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, list[str]]] = []

    def play(self: Contest, contestants: list[Contestant], rounds: int) -> list[Runs]:
        requests = json.loads(self.workload.read_text())["requests"]
        seen.append((len(requests), rounds, [one.name for one in contestants]))
        return []

    monkeypatch.setattr(Contest, "play", play)
    (tmp_path / "model-int8").mkdir()
    peers = ("--openvino", f"{sys.executable}:{tmp_path}", "--openvino", f"{sys.executable}:{tmp_path}/model-int8")
    assert bench(*peers).exit_code == 0
    assert bench(*peers, "--ours", "bf16", "--quick").exit_code == 0
    eight = ["paged-core int8", "paged-core int8-u8", "OpenVINO GenAI int8"]
    sixteen = ["paged-core bf16", "OpenVINO GenAI bf16"]
    assert seen == [(64, 2, [*sixteen, *eight]), (4, 1, [*sixteen, eight[-1]])]


def test_a_peer_that_fails_is_named_and_fails_the_command(tmp_path: Path, workload: str) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such package >&2\nexit 3\n")
    python.chmod(0o755)
    value = f"{python}:{tmp_path}"
    result = bench("--openvino", value, "--ours", "int8", "--model", str(tmp_path / "none"), "--workload", workload)
    assert result.exit_code == 1
    assert "OpenVINO GenAI bf16 failed with code 3: no such package" in result.stdout
