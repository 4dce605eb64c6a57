"""Contests with engines that only pretend."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.bench import peer_table
from paged_core.bench.peers import (
    DRIVE,
    VOCABULARY,
    Contest,
    Contestant,
    Runs,
    check_workload,
    llamacpp,
    openvino,
    ours,
    vllm,
    write_workload,
)
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

WORKLOAD = {"requests": [{"prompt": [5, 6, 7], "out": 2}, {"prompt": [8] * 4, "out": 3}]}
FAKE = """#!{python}
import json, sys
order = json.load(open(sys.argv[2]))
with open({log!r}, "a") as log:
    print(order["driver"], order["model"], order["threads"], file=log)
{extra}
json.dump(json.load(open({result!r})), open(sys.argv[3], "w"))
"""


def outcome(mixed_s: float = 10.0, noise: float = 0.0, **more: Any) -> dict[str, Any]:
    tokens = [[1, 2], [3, 4, 5]]
    figures = {"load_s": 1.0, "first_s": 0.1, "decode_per_s": 80.0, "prefill_per_s": 2000.0, "peak_bytes": 2**30}
    others = {"mixed": noise, "single": 0.0}
    known = {"engine": "fake 1", "mixed_s": mixed_s, "output_tokens": 5, "others": others, "tokens": tokens}
    return {**figures, **known, "floor": None, **more}


def fake_python(folder: Path, result: dict[str, Any], extra: str = "") -> Path:
    """An executable that takes a Python's place: it notes who was asked and answers as told."""
    folder.mkdir(exist_ok=True)
    answer, path = folder / "answer.json", folder / "python"
    answer.write_text(json.dumps(result))
    text = FAKE.format(python=sys.executable, log=str(folder.parent / "log"), result=str(answer), extra=extra)
    path.write_text(text)
    path.chmod(0o755)
    return path


def runs(name: str, precision: str, *results: dict[str, Any], driver: str = "openvino") -> Runs:
    return Runs(Contestant(name, driver, Path("python"), precision), list(results))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False
    return state not in "ZX"


@pytest.fixture
def contest(tmp_path: Path) -> Contest:
    path = tmp_path / "work.json"
    path.write_text(json.dumps(WORKLOAD))
    return Contest(path, 2, lambda line: None)


def test_contestants_take_turns_in_an_order_that_reverses(tmp_path: Path, contest: Contest) -> None:
    pair = [
        Contestant(name, "fake", fake_python(tmp_path / name, outcome()), "bf16", model=name) for name in ("a", "b")
    ]
    played = contest.play(pair, rounds=3)
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [f"fake {name} 2" for name in "abbaab"]
    assert [len(one.results) for one in played] == [3, 3]


def test_who_fails_says_why_and_is_not_asked_again(tmp_path: Path, contest: Contest) -> None:
    bad = fake_python(tmp_path / "bad", outcome(), extra="sys.exit('no such model')")
    good = fake_python(tmp_path / "good", outcome())
    played = contest.play([Contestant("x", "fake", bad, "bf16"), Contestant("y", "fake", good, "bf16")], rounds=2)
    assert played[0].failure == "x failed with code 1: no such model"
    assert [len(one.results) for one in played] == [0, 2]
    assert (tmp_path / "log").read_text().count("\n") == 3
    table = peer_table.engines_table(played)
    assert [row[0] for row in table.rows] == ["y"]
    assert "Not measured: x failed with code 1: no such model" in table.notes


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_what_a_driver_leaves_behind_is_ended(tmp_path: Path, contest: Contest) -> None:
    pid = tmp_path / "pid"
    extra = f"import subprocess; open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"
    contest.run(Contestant("x", "fake", fake_python(tmp_path / "x", outcome(), extra), "bf16"))
    deadline = time.monotonic() + 60  # it was told to end; its end is the system's work
    while is_alive(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(pid.read_text()))


def test_the_environment_of_a_contestant_reaches_its_process(tmp_path: Path, contest: Contest) -> None:
    extra = "import os; assert (os.environ['OMP_NUM_THREADS'], os.environ['X']) == ('2', 'y')"
    python = fake_python(tmp_path / "x", outcome(), extra)
    assert contest.run(Contestant("x", "fake", python, "bf16", environment={"X": "y"}))["engine"] == "fake 1"


def test_noisy_runs_are_left_out_while_there_is_a_quiet_one() -> None:
    mixture = runs("x", "bf16", outcome(10), outcome(99, noise=0.06), outcome(12))
    assert mixture.median("mixed_s") == 11
    assert peer_table.engines_table([mixture]).as_json()["rows"][0]["runs"] == "2 of 3"
    noisy = runs("x", "bf16", outcome(10, noise=0.5), outcome(20, noise=0.4))
    assert noisy.median("mixed_s") == 15
    assert peer_table.engines_table([noisy]).as_json()["rows"][0]["runs"] == "2 noisy"


def test_ratios_stand_beside_their_goals_and_a_miss_is_a_miss() -> None:
    own = runs("paged-core bf16", "bf16", outcome(10), driver="ours")
    peer = runs("OpenVINO GenAI bf16", "bf16", outcome(12.5, first_s=0.13, decode_per_s=40.0))
    eight = runs("llama.cpp int8", "int8", outcome(12.5))
    found = peer_table.tables([own, peer, eight])[1].as_json()["rows"]
    assert {row["peer"] for row in found} == {"OpenVINO GenAI bf16"}
    assert [(row["work"], row["ratio"], row["goal"], row["verdict"]) for row in found] == [
        ("all requests at once", 1.25, 1.3, "missed"),
        ("decode, one sequence", 2.0, None, None),
        ("prefill of 512 tokens", pytest.approx(1.3), 1.2, "met"),
    ]


def test_both_our_ways_of_a_precision_stand_beside_its_peers() -> None:
    plain = runs("paged-core int8", "int8", outcome(10), driver="ours")
    codes = runs("paged-core int8-u8", "int8", outcome(8), driver="ours")
    peer = runs("llama.cpp int8", "int8", outcome(32), driver="llamacpp")
    found = peer_table.tables([plain, codes, peer])[1].as_json()["rows"]
    assert [(row["ours"], row["ratio"], row["verdict"]) for row in found if row["work"] == peer_table.MIXED.name] == [
        ("paged-core int8", 3.2, "met"),
        ("paged-core int8-u8", 4.0, "met"),
    ]


def test_goals_without_a_peer_are_named() -> None:
    own = runs("paged-core bf16", "bf16", outcome(), driver="ours")
    peer = runs("OpenVINO GenAI bf16", "bf16", outcome())
    (note,) = peer_table.tables([own, peer])[1].notes
    assert "all requests at once, vLLM bf16, bound (1.4)" in note
    assert "decode, one sequence, llama.cpp int8 (1)" in note
    assert "OpenVINO GenAI bf16" not in note


def test_every_goal_beside_a_peer_is_there() -> None:
    wanted = {name: goal for (work, name), goal in peer_table.GOALS.items() if work is peer_table.MIXED}
    assert wanted == {
        "OpenVINO GenAI bf16": 1.3,
        "vLLM bf16, bound": 1.4,
        "OpenVINO GenAI int8": 1.4,
        "llama.cpp int8": 3.0,
    }


def test_the_floor_is_a_share_whichever_way_the_figure_runs() -> None:
    floor = {"mixed_s": 5.0, "first_s": 0.09, "decode_per_s": 100.0}
    own = runs("paged-core bf16", "bf16", outcome(10, floor=floor), driver="ours")
    rows = peer_table.floors_table([own]).as_json()["rows"]
    assert [row["share"] for row in rows] == [0.5, 0.8, pytest.approx(0.9)]
    assert [row["verdict"] for row in rows] == ["missed", "met", "met"]


def test_agreement_counts_first_tokens_and_whole_answers() -> None:
    own = runs("paged-core bf16", "bf16", outcome(), driver="ours")
    peer = runs("x", "bf16", outcome(tokens=[[1, 9], [3, 4, 5]]))
    (row,) = peer_table.agreement_table([(own, peer)]).as_json()["rows"]
    assert (row["requests"], row["first"], row["start"], row["whole"]) == (2, 2, 1, 1)


def test_precision_is_read_from_the_models_name(tmp_path: Path) -> None:
    for name in ("model-int8", "model-f16", "model.Q8_0.gguf", "model.BF16.gguf"):
        (tmp_path / name).touch()
    names = [openvino(f"{sys.executable}:{tmp_path}/{name}").name for name in ("model-int8", "model-f16")]
    names += [llamacpp(f"{sys.executable}:{tmp_path}/{name}").name for name in ("model.Q8_0.gguf", "model.BF16.gguf")]
    assert names == ["OpenVINO GenAI int8", "OpenVINO GenAI bf16", "llama.cpp int8", "llama.cpp bf16"]


def test_vllm_is_bound_to_as_many_cores_as_threads(tmp_path: Path) -> None:
    value = f"{sys.executable}:{tmp_path}"
    assert vllm(value, 4, bound=True).environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in vllm(value, 4, bound=False).environment


def test_ours_runs_in_this_python_with_the_precision_asked_for() -> None:
    one = ours("int8", {"model": "m", "dtype": "float32"})
    assert (one.python, one.settings["quantization"], one.settings["dtype"]) == (
        Path(sys.executable),
        "int8",
        "bfloat16",
    )
    assert one.settings["model"] == "m"
    codes = ours("int8-u8", {})
    assert (codes.precision, codes.settings["quantization"], codes.settings["kv_dtype"]) == ("int8", "int8", "uint8")


@pytest.mark.parametrize(
    ("value", "message"), [("python", "is not of the form"), ("/no/python:/no/model", "no /no/python and no /no/model")]
)
def test_a_peer_that_is_not_there_is_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        openvino(value)


def test_a_missing_or_empty_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        check_workload(tmp_path / "none.json")
    (tmp_path / "empty.json").write_text('{"requests": []}')
    with pytest.raises(ConfigError, match="no requests"):
        check_workload(tmp_path / "empty.json")


def test_a_workload_that_is_made_up_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one, same, other = (write_workload(tmp_path / name, 5, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert one.read_text() == same.read_text() != other.read_text()
    requests = json.loads(check_workload(one).read_text())["requests"]
    assert len(requests) == 5
    assert all(3 <= token < VOCABULARY for request in requests for token in request["prompt"])


class Scripted:
    """An engine that counts up, and whose last answer may be too short."""

    version = "scripted 1"

    def __init__(self, lost: int = 0) -> None:
        self.calls: list[tuple[list[list[int]], list[int]]] = []
        self.lost = lost

    def generate(self, prompts: list[list[int]], outputs: list[int]) -> list[list[int]]:
        self.calls.append((prompts, outputs))
        return [list(range(output - self.lost)) for output in outputs]

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def drive() -> ModuleType:
    """The driver as a peer's Python sees it: a file, no part of this package."""
    spec = importlib.util.spec_from_file_location("drive_of_a_peer", DRIVE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_driver_asks_for_the_work_it_claims_to_measure(drive: ModuleType) -> None:
    engine = Scripted()
    result = drive.measured(engine, WORKLOAD["requests"], 1.5)
    shapes = {(len(prompts), len(prompts[0]), outputs[0]) for prompts, outputs in engine.calls[2:-1]}
    assert shapes == {(1, 512, 1), (1, 128, 1), (1, 128, 129), (32, 128, 1)}
    assert engine.calls[-1] == ([[5, 6, 7], [8] * 4], [2, 3])
    assert (result["output_tokens"], result["tokens"]) == (5, [[0, 1], [0, 1, 2]])
    assert set(outcome()) - set(result) == {"floor"}


def test_the_driver_refuses_answers_of_the_wrong_length(drive: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="scripted 1 answered 3 tokens instead of 5"):
        drive.measured(Scripted(lost=1), WORKLOAD["requests"], 1.5)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_own_work_is_not_counted_as_the_neighbours(drive: ModuleType) -> None:
    before = drive.own_seconds()
    while drive.own_seconds() < before + 0.2:
        sum(range(10000))
    assert drive.busy_seconds() >= drive.own_seconds() - before
    assert drive.peak_bytes() > 2**20


def test_drivers_need_nothing_but_the_peer_and_the_standard_library() -> None:
    import ast

    for path in DRIVE.parent.glob("*.py"):
        if path.name == "with_ours.py":
            continue
        tree = ast.parse(path.read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        allowed = {"openvino", "openvino_genai", "numpy"} if path.name == "with_openvino.py" else {"vllm"}
        assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) <= allowed, path.name
