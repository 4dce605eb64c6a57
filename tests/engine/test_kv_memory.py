from __future__ import annotations

from paged_core.bench.shapes import SHAPES, RandomLoader
from paged_core.engine.kv_memory import gpu_kv_memory, working_memory
from paged_core.model.weights import num_parameters
from paged_core.settings import Settings

GIB = 1 << 30
SPEC = RandomLoader(SHAPES["llama-1.1b"]).spec()


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
