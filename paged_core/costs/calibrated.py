"""Calibrated: coefficients that others measured and published, for whole prompts or decodes in a step.

Source: DistServe (Zhong et al., OSDI'24), the simulator in its repository, fits of vLLM's kernels on A100s of 80 GB. In
milliseconds, T = prompt tokens of the step, L = each prompt's length, S = tokens of context, n = sequences:

    prefill   a + b * T + c * sum(L^2)          decode   a + b * S + c * n, with other numbers from n = 95 on

A GPU of 40 GB has less bandwidth (1,555 instead of 2,039 GB/s); a decode's a and b, which it bounds, grow by the ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from paged_core.costs.devices import DEVICES
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paged_core.costs.work import CostModel, StepWork

LARGE_BATCH = 95
"""Decoding sequences from which on the second line of coefficients holds."""
SLOWER_MEMORY = 1.31
"""2,039 / 1,555 GB/s."""


class Line(NamedTuple):
    """Milliseconds: a + b * first + c * second."""

    a: float
    b: float
    c: float

    def __call__(self, first: float, second: float) -> float:
        """Seconds."""
        return (self.a + self.b * first + self.c * second) / 1000

    def slower_memory(self, factor: float) -> Line:
        """What bandwidth bounds of a decode, `factor` times dearer."""
        return Line(self.a * factor, self.b * factor, self.c)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Published coefficients. `mixed` prices steps of prompts beside decodes, for which there are none."""

    source: str
    prefill: Line
    decode: Line
    large_decode: Line
    mixed: CostModel | None = None

    def step_s(self, work: StepWork) -> float:
        """Seconds. A mixed step is never cheaper than its prompts or its decodes alone. ConfigError: it has no price.

        A chunk of a prompt pays for the squares it adds: a prompt's chunks cost what the prompt does, but for `a`.
        """
        if not work.prefill_tokens:
            line = self.decode if work.num_decodes < LARGE_BATCH else self.large_decode
            return line(work.decode_context, work.num_decodes)
        if not work.num_decodes:
            return self.prefill(work.prefill_tokens, work.prefill_squares)
        if self.mixed is None:
            raise ConfigError(
                f"{self.source}: no coefficients for prompts beside decodes in one step; take a scheduler of "
                "prefill-only steps without chunked prefill (sched_prefill_first), or the cost model roofline"
            )
        alone = max(self.step_s(work.without_decodes()), self.step_s(work.without_prefills()))
        return max(alone, self.mixed.step_s(work))

    def describe(self) -> str:
        """Where the numbers are from."""
        beside = "refused" if self.mixed is None else self.mixed.describe()
        return f"{self.source}; prompts beside decodes: {beside}"


_SOURCE = "published fit of vLLM's kernels (DistServe, OSDI'24)"
_A100_80GB: Mapping[tuple[str, int], Calibrated] = {
    ("opt-13b", 1): Calibrated(
        f"OPT-13B on one A100, {_SOURCE}",
        Line(22.05, 0.1405, 8.08e-6),
        Line(23.48, 5.93e-4, 0.0607),
        Line(20.21, 4.91e-4, 0.1200),
    ),
    ("opt-66b", 4): Calibrated(
        f"OPT-66B on four A100s, {_SOURCE}",
        Line(42.97, 0.2129, 4.60e-5),
        Line(39.58, 6.95e-4, 0.1358),
        Line(40.86, 4.26e-4, 0.1951),
    ),
}
_AS_LARGE = {"llama-13b": "opt-13b"}
"""Models with as many bytes of weights and of keys and values as another one: its coefficients serve for these too."""


def calibrated(model: str, device: str, num_devices: int) -> Calibrated | None:
    """The published coefficients for a model on so many devices of a name, or None where there are none."""
    found = _A100_80GB.get((_AS_LARGE.get(model, model), num_devices))
    if found is None or device not in ("a100-80gb", "a100-40gb"):
        return None
    if model in _AS_LARGE:
        found = replace(found, source=f"{model}, as large as: {found.source}")
    if device == "a100-80gb":
        return found
    return replace(
        found,
        source=f"{found.source}, memory {SLOWER_MEMORY} times slower (40 GB)",
        decode=found.decode.slower_memory(SLOWER_MEMORY),
        large_decode=found.large_decode.slower_memory(SLOWER_MEMORY),
    )


assert abs(DEVICES["a100-80gb"].bytes_per_s / DEVICES["a100-40gb"].bytes_per_s - SLOWER_MEMORY) < 0.01
