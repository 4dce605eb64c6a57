"""Peaks are measured when they can be: before an engine takes a GPU's memory, after it has set a CPU's threads."""

from __future__ import annotations

import pytest

from paged_core.bench import speed
from paged_core.bench.peaks import Peaks

SETTINGS = {
    "model": "random:tiny",
    "plugin_modules": ("paged_core.bench.shapes",),
    "attn": "attn_torch",
    "num_blocks": 16,
    "threads": 1,
    "device": "cpu",
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_peaks_are_those_of_the_device_at_the_right_moment(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    happened: list[str] = []
    llm = speed.LLM

    def measure_peaks(device: str) -> Peaks:
        happened.append(f"peaks of {device}")
        return Peaks(1e9, 1e9, 1e9, None)

    def load(**settings: object) -> speed.LLM:
        happened.append("engine")
        return llm(**settings)

    monkeypatch.setattr(speed, "choose_device", lambda asked: device)
    monkeypatch.setattr(speed, "measure_peaks", measure_peaks)
    monkeypatch.setattr(speed, "LLM", load)
    with speed.Bench(SETTINGS, lambda line: None):
        pass
    wanted = ["engine", "peaks of cpu"] if device == "cpu" else ["peaks of cuda", "engine"]
    assert happened == wanted
    with speed.Bench(SETTINGS, lambda line: None, Peaks(1e9, 1e9, 1e9, None)):
        pass
    assert happened == [*wanted, "engine"]
