"""Models of random weights: a shape by name instead of a file, for speed alone. A loader plugin like any other, which
benchmarks load by themselves where the model's name says so:

paged-core bench latency --model random:llama-3-8b --device cuda
paged-core run --plugin paged_core.bench.shapes --model random:llama-1.1b ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paged_core.api.hookspecs import hookimpl
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.costs.models import MODELS
from paged_core.model.ids_only import IdsOnly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from paged_core.api.loader import Tokenizer
    from paged_core.api.model import ModelSpec

PREFIX = "random:"
_DRAWN = 1_000_003
"""Normal numbers that are drawn once and repeated: a prime, so that no two rows of a matrix are alike."""
_DEVIATION = 0.02


class RandomProvider(Provider[LoaderNeed, Loader]):
    """Serves the names of `paged_core.costs.models` behind `random:`."""

    name = "load_random"
    kind = "loader"
    api = 1
    priority = 0
    summary = "models of random weights by shape, to measure speed without a file"

    def probe(self, need: LoaderNeed) -> Fit:
        """Fits a known name."""
        reasons = self.missing_capabilities(need.required)
        if need.model.removeprefix(PREFIX) not in MODELS or not need.model.startswith(PREFIX):
            reasons.append(f"{need.model!r} is none of {', '.join(PREFIX + name for name in MODELS)}")
        return Fit.judge(reasons)

    def create(self, need: LoaderNeed, settings: PluginSettings, plugins: PluginRegistry) -> Loader:
        """The loader of that shape; nothing is drawn yet."""
        return RandomLoader(MODELS[need.model.removeprefix(PREFIX)], need.device)


class RandomLoader(Loader):
    """Weights of one model, made on the device as they are asked for: always the same ones."""

    def __init__(self, spec: ModelSpec, device: str = "cpu") -> None:
        self._spec = spec
        self._device = device

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        """There are no files; this one is as good as any."""
        return Path(__file__)

    def spec(self) -> ModelSpec:
        """The architecture."""
        return self._spec

    def tokenizer(self) -> Tokenizer:
        """One that knows ids only."""
        return IdsOnly(self._spec.vocab_size)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Normal numbers of a deviation that keeps activations finite, ones for norms; in bfloat16, one at a time.

        Only the numbers that are repeated pass through host memory: so they are the same on every device.
        """
        import torch

        from paged_core.model.weights import expected_shapes

        drawn = torch.empty(_DRAWN).normal_(0, _DEVIATION, generator=torch.Generator().manual_seed(0))
        drawn = drawn.to(self._device, torch.bfloat16)
        for name, shape in expected_shapes(self.spec()).items():
            tensor = torch.ones(shape, dtype=torch.bfloat16, device=self._device)
            if "norm" not in name:
                for part in torch.split(tensor.view(-1), _DRAWN):
                    part.copy_(drawn[: len(part)])
            yield name, tensor


@hookimpl
def paged_model_loader() -> RandomProvider:
    """Registers the provider."""
    return RandomProvider()
