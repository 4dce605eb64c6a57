"""Models of random weights: a shape by name instead of a file, for speed alone. A loader plugin like any other, which
benchmarks load by themselves where the model's name says so:

paged-core bench latency --model random:llama-3-8b --device cuda
paged-core run --plugin paged_core.bench.shapes --model random:llama-1.1b ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.api.hookspecs import hookimpl
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from paged_core.api.loader import Tokenizer
    from paged_core.api.model import ModelSpec

PREFIX = "random:"
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
_LLAMA_3 = _LLAMA | {"vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-1.1b": _LLAMA
    | {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64},
    "llama-3-1b": _LLAMA_3
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
    "llama-3-8b": _LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "smollm2-135m": _LLAMA
    | {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    | {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": True},
    "tiny": _LLAMA
    | {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}
"""What config.json would say, by name."""
_DRAWN = 1_000_003
"""Normal numbers that are drawn once and repeated: a prime, so that no two rows of a matrix are alike."""
_DEVIATION = 0.02


class RandomProvider(Provider[LoaderNeed, Loader]):
    """Serves the names of `SHAPES` behind `random:`."""

    name = "load_random"
    kind = "loader"
    api = 1
    priority = 0
    summary = "models of random weights by shape, to measure speed without a file"

    def probe(self, need: LoaderNeed) -> Fit:
        """Fits a known name."""
        reasons = self.missing_capabilities(need.required)
        if need.model.removeprefix(PREFIX) not in SHAPES or not need.model.startswith(PREFIX):
            reasons.append(f"{need.model!r} is none of {', '.join(PREFIX + name for name in SHAPES)}")
        return Fit.judge(reasons)

    def create(self, need: LoaderNeed, settings: PluginSettings, plugins: PluginRegistry) -> Loader:
        """The loader of that shape; nothing is drawn yet."""
        return RandomLoader(SHAPES[need.model.removeprefix(PREFIX)], need.device)


class RandomLoader(Loader):
    """Weights of one model, made on the device as they are asked for: always the same ones."""

    def __init__(self, config: Mapping[str, Any], device: str = "cpu") -> None:
        self._config = config
        self._device = device

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        """There are no files; this one is as good as any."""
        return Path(__file__)

    def spec(self) -> ModelSpec:
        """The architecture."""
        from paged_core.model.spec import spec_from_hf

        return spec_from_hf(dict(self._config))

    def tokenizer(self) -> Tokenizer:
        """One that knows ids only."""
        from paged_core.bench.stub import IdsOnly

        return IdsOnly(int(self._config["vocab_size"]))

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
