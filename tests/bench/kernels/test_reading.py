"""What is compared takes turns, work is captured where it can be, what does not fit is left out with its reason."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from paged_core.bench.kernels.cases import Case, Heads, Move
from paged_core.bench.kernels.paged import Backend, Layers
from paged_core.bench.kernels.reading import Log, read_case, read_move
from paged_core.bench.kernels.rivals import Contiguous

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from paged_core.bench.site import Site
    from paged_core.plugins import Plugins

HEADS = Heads(4, 2, 16)
TORCH, CODES = Backend("torch", 8, "float32"), Backend("torch", 8, "uint8")


@pytest.fixture
def log() -> Log:
    return Log(lambda line: None)


def test_every_type_is_read_and_contiguous_attention_beside_float_ones(plugins: Plugins, site: Site, log: Log) -> None:
    read_case(plugins, Case(HEADS, 2, 20), [TORCH, CODES], site, 2, log)
    wide, codes = log.steps
    assert (wide.backend.kv_dtype, codes.backend.kv_dtype) == ("float32", "uint8")
    assert (list(wide.rivals), list(codes.rivals)) == (["contiguous"], [])
    assert len(wide.seconds.samples) == len(wide.rivals["contiguous"].samples) == 2
    assert wide.without_writing is None
    assert set(log.left_out) >= {"flash-attn", "flashinfer"}


def test_a_write_is_read_with_and_without_its_slots(plugins: Plugins, site: Site, log: Log) -> None:
    read_case(plugins, Case(HEADS, 2, 1), [TORCH], site, 1, log)
    (reading,) = log.steps
    assert reading.without_writing is not None
    assert reading.rotating is None, "attn_torch rotates nothing"
    assert reading.rivals == {}


def test_a_plugin_that_rotates_is_read_rotating(plugins: Plugins, site: Site, log: Log) -> None:
    read_case(plugins, Case(HEADS, 2, 1), [Backend("cpu", 16, "float32")], site, 1, log)
    assert log.steps[0].rotating is not None


def test_seconds_are_those_of_a_layer(plugins: Plugins, site: Site, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock ticks once a layer, whatever is run."""
    ran: list[int] = []
    real = Layers.run

    def run(layers: Layers) -> object:
        ran.append(layers.count)
        return real(layers)

    def timer(action: Callable[[], object]) -> float:
        before = sum(ran)
        action()
        return (sum(ran) - before) * 1e-4

    monkeypatch.setattr(Layers, "run", run)
    monkeypatch.setattr("paged_core.bench.kernels.reading.RIVALS", ())
    site = dataclasses.replace(site, timer=timer, sample_s=0.1)
    read_case(plugins, Case(HEADS, 2, 20), [TORCH], site, 3, log)
    assert log.steps[0].seconds.samples == pytest.approx((1e-4,) * 3)
    assert ran[0] > 1
    assert len(ran) > 4 * 3, "samples of a tenth of a second are several sweeps"


class Capturing:
    """An accelerator that captures, or says why not."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.replays = 0

    def capture(self, work: Callable[[], object]) -> SimpleNamespace:
        if self.refusal:
            raise RuntimeError(f"{self.refusal}\nand a long story")

        def replay() -> None:
            self.replays += 1
            work()

        return SimpleNamespace(replay=replay)

    def synchronize(self) -> None:
        pass


def with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Layers.__init__

    def made(layers: Layers, *given: object) -> None:
        real(layers, *given)  # type: ignore[arg-type]
        layers.has_graphs = True

    monkeypatch.setattr(Layers, "__init__", made)


def test_layers_of_a_plugin_with_graphs_are_replayed(
    plugins: Plugins, site: Site, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_graphs(monkeypatch)
    monkeypatch.setattr("paged_core.bench.kernels.reading.RIVALS", ())
    device = Capturing()
    read_case(plugins, Case(HEADS, 2, 20), [TORCH], dataclasses.replace(site, accelerator=device), 2, log)  # type: ignore[arg-type]
    assert device.replays >= 3
    assert not [what for what in log.left_out if what.startswith("capturing")]


def test_of_a_plugin_without_graphs_nothing_is_captured(
    plugins: Plugins, site: Site, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paged_core.bench.kernels.reading.RIVALS", ())
    device = Capturing("must not be asked")
    read_case(plugins, Case(HEADS, 2, 20), [TORCH], dataclasses.replace(site, accelerator=device), 1, log)  # type: ignore[arg-type]
    assert (device.replays, log.left_out) == (0, {})


def test_where_capturing_fails_the_reason_is_told_and_calls_are_timed(
    plugins: Plugins, site: Site, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_graphs(monkeypatch)
    device = Capturing("operation not permitted")
    read_case(plugins, Case(HEADS, 2, 20), [TORCH], dataclasses.replace(site, accelerator=device), 1, log)  # type: ignore[arg-type]
    assert log.steps[0].seconds.median > 0
    assert log.left_out["capturing decode by torch"].startswith("operation not permitted; launched call by call")
    assert "capturing decode by contiguous" in log.left_out


def test_what_does_not_fit_the_memory_is_left_out(plugins: Plugins, site: Site, log: Log) -> None:
    small = dataclasses.replace(site, memory=1 << 16)
    read_case(plugins, Case(HEADS, 8, 64), [TORCH], small, 1, log)
    read_move(plugins, Move("copy", HEADS, 64, layers=8), TORCH, small, 1, log)
    assert (log.steps, log.moved) == ([], [])
    step, move = log.left_out.values()
    assert "--memory" in step
    assert "--memory" in move


def test_what_does_not_fit_the_plugin_is_left_out_with_its_reason(plugins: Plugins, site: Site, log: Log) -> None:
    odd = Backend("torch", 512, "float32")
    read_case(plugins, Case(HEADS, 1, 8), [odd, TORCH], site, 1, log)
    read_move(plugins, Move("copy", HEADS, 1, layers=1), odd, site, 1, log)
    assert [one.backend for one in log.steps] == [TORCH]
    assert log.moved == []
    assert "512" in log.left_out["4/2 x 16, float32, blocks of 512"]


def test_a_rival_that_refuses_a_case_is_left_out_of_it(
    plugins: Plugins, site: Site, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Contiguous):
        name, module = "stranger", "json"

        @classmethod
        def lacks(cls, dtype: str, device: str) -> str:
            return ""

        def run(self) -> torch.Tensor:
            raise RuntimeError("group size 2 is not supported")

    monkeypatch.setattr("paged_core.bench.kernels.reading.RIVALS", (Contiguous, Refusing))
    read_case(plugins, Case(HEADS, 2, 20), [TORCH], site, 1, log)
    assert list(log.steps[0].rivals) == ["contiguous"]
    assert "group size 2" in log.left_out["stranger, decode, 4/2 x 16, float32"]
    monkeypatch.setattr(Refusing, "module", "")
    with pytest.raises(RuntimeError, match="group size 2"):
        read_case(plugins, Case(HEADS, 2, 20), [TORCH], site, 1, log)


def test_a_reason_is_told_once() -> None:
    told: list[str] = []
    log = Log(told.append)
    log.leave_out("flash-attn", "not installed")
    log.leave_out("flash-attn", "not installed")
    assert told == ["flash-attn is left out: not installed"]
