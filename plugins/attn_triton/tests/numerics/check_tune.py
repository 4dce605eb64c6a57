"""Tuning: what is measured and kept; the step that is measured is a right one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from paged_attn_triton.configs import Config
from paged_attn_triton.measure import step_of
from paged_attn_triton.shapes import Shape
from paged_attn_triton.tune import candidates, tuned
from triton.runtime.errors import OutOfResources

SHAPE = Shape("bfloat16", "bfloat16", 32, 8, 128, 16, 90)


class Measured:
    """Twice the keys are fastest for decode, what the rule says for prefill; some tiles are too large."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Config]] = []

    def __call__(self, shape: Shape, kernel: str) -> float:
        config = shape.decode_config if kernel == "decode" else shape.prefill_config(False, False)
        self.calls.append((kernel, config))
        if config.stages > 5 or config.tile > 128:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return (
            1.0 / config.tile if kernel == "decode" else abs(config.tile - 128) + abs(config.warps - 8) + config.stages
        )


def test_the_fastest_tiles_are_taken_and_kept(tmp_path):
    first, second = Measured(), Measured()
    shape = tuned(SHAPE, "GPU", tmp_path, first)
    assert shape.decode_config == replace(SHAPE.decode_config, tile=128)
    assert shape.prefill_config(False, False) == replace(SHAPE.prefill_config(False, False), stages=1)
    assert shape.prefill_config(True, False) == SHAPE.prefill_config(True, False)
    assert shape.queries_per_tile == SHAPE.queries_per_tile
    assert tuned(SHAPE, "GPU", tmp_path, second) == shape
    assert not second.calls
    assert tuned(SHAPE, "another GPU", tmp_path, second) == shape
    assert second.calls == first.calls
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["", "{}", '{"decode": {"rows": 1}, "prefill": {}}', "[1]"])
def test_a_damaged_file_is_measured_again(tmp_path, damage, caplog):
    shape = tuned(SHAPE, "GPU", tmp_path, Measured())
    (file,) = tmp_path.iterdir()
    file.write_text(damage)
    again = Measured()
    assert tuned(SHAPE, "GPU", tmp_path, again) == shape
    assert again.calls
    assert "cannot be read" in caplog.text
    assert json.loads(file.read_text())["decode"]["tile"] == 128


def test_a_rule_that_does_not_fit_is_an_error(tmp_path):
    def too_large(shape: Shape, kernel: str) -> float:
        raise OutOfResources(300_000, 232_448, "shared memory")

    with pytest.raises(OutOfResources):
        tuned(SHAPE, "GPU", tmp_path, too_large)
    assert not list(tmp_path.iterdir())


def test_candidates_are_the_rule_and_its_neighbours():
    rule = Config(16, 16, 4, 3)
    assert candidates(rule)[0] == rule
    assert {config.rows for config in candidates(rule)} == {16}
    assert min(config.tile for config in candidates(rule)) == 16
    assert min(config.stages for config in candidates(rule)) == 1


@pytest.mark.parametrize(("num_seqs", "length", "num_new"), [(3, 70, 1), (2, 40, 40)])
def test_the_measured_step_is_a_real_one(create, num_seqs, length, num_new):
    """Values of one are what attention over ones gives, whatever the weights."""
    backend = create(max_len=4096)
    step = step_of(backend, backend._need, num_seqs, length, num_new)
    step.cache[:, 1] = 1.0
    step.qkv[2].fill_(1.0)
    step()
    torch.testing.assert_close(step.out, torch.ones_like(step.out))


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level("WARNING"):
        shape = tuned(SHAPE, "GPU", tmp_path / "file" / "below", Measured())
    assert shape == tuned(SHAPE, "GPU", tmp_path, Measured())
    assert "the next start measures them again" in caplog.text
