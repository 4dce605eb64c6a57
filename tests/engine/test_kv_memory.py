from __future__ import annotations

import pytest

from paged_core.costs.models import MODELS
from paged_core.engine import assemble
from paged_core.engine.assemble import _useful
from paged_core.engine.kv_memory import gpu_kv_memory, working_memory
from paged_core.model.weights import num_parameters
from paged_core.settings import Settings

GIB = 1 << 30
SPEC = MODELS["llama-1.1b"]


def pool(free: float, total: float, **settings) -> int:
    return gpu_kv_memory(Settings.load(**settings), SPEC, "bfloat16", 8192, (int(free * GIB), int(total * GIB)))


def test_weights_working_memory_and_pool_together_take_the_allowed_share():
    rest = 2 * num_parameters(SPEC) + working_memory(SPEC, "bfloat16", 8192, 256)
    assert pool(80, 80) + rest == int(80 * GIB * 0.9)
    assert pool(80, 80, gpu_memory_utilization=0.5) + rest == 40 * GIB


def test_what_other_programs_hold_is_not_taken():
    rest = 2 * num_parameters(SPEC) + working_memory(SPEC, "bfloat16", 8192, 256)
    assert pool(20, 80) + rest == 20 * GIB


def test_a_gpu_too_small_leaves_nothing():
    assert pool(1, 2) == 0


def test_working_memory_grows_with_the_step_and_stays_a_small_share():
    small, large = (working_memory(SPEC, "bfloat16", tokens, 64) for tokens in (1024, 8192))
    assert GIB < small < large < 4 * GIB


def test_graphs_are_used_on_a_gpu_unless_told_otherwise():
    def useful(device, **settings):
        return _useful(Settings.load(**settings), SPEC, device)

    assert useful("cuda") == {"fused_rope", "graphs"}
    assert useful("cuda", enforce_eager=True) == useful("cpu") == {"fused_rope"}


@pytest.mark.parametrize(
    ("settings", "expected"), [({"kv_memory": "3GiB"}, 3 * GIB), ({}, pool(40, 80)), ({"num_blocks": 4}, None)]
)
def test_a_gpu_is_asked_only_where_nobody_says(monkeypatch, settings, expected):
    asked = []
    monkeypatch.setattr(assemble, "gpu_memory", lambda: asked.append(1) or (40 * GIB, 80 * GIB))
    found = assemble._kv_memory(Settings.load(**settings), SPEC, ("cuda", "bfloat16"), 8192)
    assert expected is None or found == expected
    assert bool(asked) == (not settings)
