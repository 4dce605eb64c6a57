"""Every path that serves is timed once a shape, against the floor of its own weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
import torch

from paged_core.bench import timing
from paged_core.bench.linear import Contestant, Effort, Shape, contestants, floor_s, linear_tables, read
from paged_core.bench.peaks import Peaks
from paged_core.errors import ConfigError
from paged_core.model.linear.choice import PATHS
from paged_core.model.linear.plain import PlainLinear

if TYPE_CHECKING:
    from paged_core.model.place import Place

SHAPE = Shape("tiny", "o", 32, 16)
PEAKS = Peaks(read_bytes=1000.0, fp32=1e5, bf16=2e5, int8=4e5)


def test_all_paths_compete_that_serve_here_and_the_others_are_told() -> None:
    lines: list[str] = []
    names = {one.name for one in contestants(("float32",), lines.append)}
    assert {"torch fp32", "onednn fp32", "onednn_int8"} <= names
    assert any(line.startswith("zentorch_int8 is left out: ") for line in lines)
    assert not any("onednn" in line for line in lines)


def test_an_int8_path_competes_once_in_the_first_type_it_knows() -> None:
    names = [one.name for one in contestants(("bfloat16", "float32"), lambda line: None)]
    assert names.count("onednn_int8") == 1
    assert len(names) == len(set(names))


def test_without_any_path_the_benchmark_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.bench.linear.cpu_has_bf16", lambda: False)
    lines: list[str] = []
    with pytest.raises(ConfigError, match="--dtype"):
        contestants(("bfloat16",), lines.append)
    assert "bfloat16" in lines[0]


def test_the_floor_is_reading_for_few_rows_and_multiplying_for_many() -> None:
    plain = Contestant(PlainLinear, "float32", "float32")
    assert floor_s(plain, SHAPE, 1, PEAKS) == pytest.approx(4 * 32 * 16 / 1000)
    assert floor_s(plain, SHAPE, 1000, PEAKS) == pytest.approx(2 * 1000 * 32 * 16 / 1e5)
    quantised = Contestant(PATHS[0], "bfloat16", "int8")
    assert floor_s(quantised, SHAPE, 1, PEAKS) == pytest.approx((32 * 16 + 4 * 16) / 1000)
    assert floor_s(quantised, SHAPE, 1000, PEAKS) == pytest.approx(2 * 1000 * 32 * 16 / 4e5)


class Counted:
    """A linear layer that notes who was called."""

    name: ClassVar[str] = "counted"
    calls: ClassVar[list[tuple[int, torch.dtype]]] = []
    made: ClassVar[int] = 0

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.index, self.weight = Counted.made, weight
        Counted.made += 1

    @classmethod
    def lacks(cls, place: Place) -> str:
        return ""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        Counted.calls.append((self.index, x.dtype))
        return x


def test_copies_of_the_weight_take_turns_and_a_call_is_timed_not_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing.CLOCKS, "wall", lambda: float(len(Counted.calls)))
    field = [Contestant(Counted, "bfloat16", "bfloat16")]
    copies = 3
    (reading,) = read(SHAPE, [2], field, Effort(2, copies * 32 * 16 * 2), lambda line: None)
    assert Counted.made == copies
    assert [index for index, _ in Counted.calls] == [i % copies for i in range(len(Counted.calls))]
    assert {dtype for _, dtype in Counted.calls} == {torch.bfloat16}
    assert reading.seconds["counted bf16"].samples == (1.0, 1.0)


def test_tables_hold_a_row_a_reading_and_a_column_a_path() -> None:
    field = contestants(("float32",), lambda line: None)
    readings = read(SHAPE, [1, 2], field, Effort(1, 1 << 12), lambda line: None)
    times, shares, read_rates, rates = linear_tables(readings, field, PEAKS, Effort(1, 1 << 12))
    for table in (times, shares, read_rates, rates):
        assert [row["rows"] for row in table.as_json()["rows"]] == [1, 2]
    time, share = times.as_json()["rows"][0], shares.as_json()["rows"][0]
    for one in field:
        assert share[one.name] == pytest.approx(floor_s(one, SHAPE, 1, PEAKS) / time[one.name] * 1e6)
    assert time["best"] == min((time[one.name], one.name) for one in field)[1]
