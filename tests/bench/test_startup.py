"""Fresh processes are watched from outside; what they tell of their phases is read back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from paged_core.bench.startup import Start, Starts, launch, observe, phases_of, phases_table, startup_table
from paged_core.errors import PagedError
from paged_core.testing.tiny import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

TOLD = """prompt  2 tokens
  TTFT       0.900 s
start-up:
  python and command line       0.250 s
  compute libraries             1.500 s
  first token                   0.125 s
  process start to first token  1.875 s
"""


def test_phases_are_read_from_what_timing_prints() -> None:
    phases = phases_of(TOLD)
    assert phases == {
        "python and command line": 0.25,
        "compute libraries": 1.5,
        "first token": 0.125,
        "process start to first token": 1.875,
    }
    assert Start(1.9, 2.0, 1.0, phases).ready_s == 1.75


def test_a_process_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(PagedError, match=r"run --no-such failed with code 2: .*--no-such"):
        launch(["run", "--no-such"], {})


def test_cold_starts_begin_with_an_empty_cache_and_warm_ones_with_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "models").mkdir(parents=True)
    monkeypatch.setenv("PAGED_CACHE_DIR", str(own))
    seen: list[tuple[str, list[str]]] = []

    def fake(arguments: list[str], environment: dict[str, str]) -> Start:
        cache = environment.get("PAGED_CACHE_DIR")
        seen.append((arguments[0], sorted(os.listdir(cache)) if cache else []))
        if cache:
            assert os.path.samefile(os.path.join(cache, "models"), own / "models")
            open(os.path.join(cache, "kernel"), "w").close()
        return Start(1.0, 2.0, 0.5, phases_of(TOLD))

    monkeypatch.setattr("paged_core.bench.startup.launch", fake)
    observe(["--threads", "1"], 2, 2, lambda line: None)
    helps, runs = [one for one in seen if one[0] == "--help"], [one for one in seen if one[0] == "run"]
    assert len(helps) == 3  # one to warm up
    assert [files for _, files in runs] == [["models"], ["models"], ["kernel", "models"], ["kernel", "models"]]
    assert os.listdir(own) == ["models"]


def test_tables_hold_medians() -> None:
    warm = [Start(seconds, seconds + 1, 0.5, phases_of(TOLD)) for seconds in (3.0, 1.0, 2.0)]
    cold = [Start(9.0, 9.5, 8.0, phases_of(TOLD.replace("1.500", "7.500")))]
    starts = Starts([Start(0.1, 0.2, 0.15, {})], cold, warm)
    rows = {row["what"]: row for row in startup_table(starts).as_json()["rows"]}
    assert rows["first token, warm kernel cache"]["wall_s"] == 2.0
    assert rows["engine ready, cold kernel cache"]["wall_s"] == 7.75
    assert (rows["paged-core --help, to its end"]["wall_s"], rows["paged-core --help, to its end"]["rounds"]) == (
        0.2,
        1,
    )
    phases = {row["phase"]: (row["warm_s"], row["cold_s"]) for row in phases_table(starts).as_json()["rows"]}
    assert phases["compute libraries"] == (1.5, 7.5)


def test_a_real_process_answers_and_tells_its_phases(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    start = launch(
        [
            "run",
            "Hello",
            "--raw",
            "--max-tokens",
            "1",
            "--ignore-eos",
            "--timing",
            "--model",
            str(model),
            "--attn=torch",
        ],
        {"PAGED_KV_MEMORY": "4MiB"},
    )
    assert 0 < start.ready_s < start.end_s
    assert 0 < start.first_byte_s <= start.end_s
    assert start.cpu_s > 0
    assert {"plugins", "weights and KV pool", "first token"} <= set(start.phases)
