"""Floor: how fast a schedule could run if every kernel reached the machine's own peaks.

A step takes at least the larger of reading the weights once and multiplying all its tokens, and then the larger of
reading the keys and values it attends to and of attending. The same schedule, replayed at that price, is the floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paged_core.bench.stub import Arrival, StubExecutor, drive, stub_engine
from paged_core.engine.clock import VirtualClock
from paged_core.engine.hardware import element_bytes, kv_bytes
from paged_core.errors import ConfigError
from paged_core.model.weights import expected_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.api.batch import StepPlan
    from paged_core.api.model import ModelSpec
    from paged_core.bench.peaks import Peaks
    from paged_core.engine.config import EngineConfig

SCALE_BYTES = 4
"""Of one row of an int8 matrix."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds of a step, from what a model must read and multiply and from the machine's peaks."""

    weight_bytes: int  # read once a step
    token_ops: int  # of every token, in the layers
    draw_ops: int  # of every draw, in the head
    kv_bytes: int  # of every token attended to
    attention_ops: int  # of every pair of a token and one it attends to
    read_bytes_per_s: float
    ops_per_s: float  # of products with weights
    attention_ops_per_s: float

    def __call__(self, plan: StepPlan) -> float:
        """Seconds of `plan`."""
        products = self.token_ops * plan.num_tokens + self.draw_ops * len(plan.sample_index)
        linear = max(self.weight_bytes / self.read_bytes_per_s, products / self.ops_per_s)
        pairs = int(np.sum(plan.positions, dtype=np.int64)) + plan.num_tokens
        read = self.kv_bytes * int(np.sum(plan.seq_lens, dtype=np.int64))
        return linear + max(read / self.read_bytes_per_s, self.attention_ops * pairs / self.attention_ops_per_s)


def floor_of(spec: ModelSpec, facts: EngineConfig, peaks: Peaks) -> Floor:
    """The floor of a dense model. ConfigError for a mixture of experts: what it reads depends on its routing."""
    if spec.moe is not None:
        raise ConfigError(f"{facts.model} is a mixture of experts: there is no floor to hold it against yet")
    shapes = [shape for name, shape in expected_shapes(spec).items() if name.startswith("layers.")]
    head = (spec.vocab_size, spec.hidden_size)
    return Floor(
        weight_bytes=sum(stored_bytes(shape, facts) for shape in [*shapes, head]),
        token_ops=2 * sum(math.prod(shape) for shape in shapes),
        draw_ops=2 * math.prod(head),
        kv_bytes=spec.kv_bytes_per_token(*kv_bytes(facts.kv_dtype)),
        attention_ops=4 * spec.num_heads * spec.head_dim * spec.num_layers,
        read_bytes_per_s=peaks.read_bytes,
        ops_per_s=peaks.rate(facts.dtype if facts.quantization == "none" else facts.quantization),
        attention_ops_per_s=peaks.rate(facts.dtype),
    )


def stored_bytes(shape: tuple[int, ...], facts: EngineConfig) -> int:
    """Matrices may be quantised, to a byte an element and a float32 scale a row; the rest is in the model's dtype."""
    if facts.quantization == "int8" and len(shape) == 2:
        return math.prod(shape) + SCALE_BYTES * shape[0]
    return math.prod(shape) * element_bytes(facts.dtype)


def replay(facts: EngineConfig, floor: Floor, arrivals: Sequence[Arrival]) -> list[float]:
    """Seconds at the end of every step, when an engine of these facts answers `arrivals` at the floor's price."""
    clock, ends = VirtualClock(), list[float]()
    engine = stub_engine(facts, StubExecutor(floor), clock)
    drive(engine, clock, arrivals, lambda: ends.append(clock.now()), until=math.inf)
    engine.close()
    return ends
