"""sample_torch: the sampler in torch, for any device that computes in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, Provider
from paged_core.api.sampler import Sampler, SamplerNeed

if TYPE_CHECKING:
    from paged_sample_torch.sampler import TorchSampler


class TorchSamplerProvider(Provider[SamplerNeed, Sampler]):
    """Greedy and random sampling whose draws depend on seed, branch and position only."""

    name = "sample_torch"
    kind = "sampler"
    api = 1
    priority = 0
    summary = "sampling in torch on any device; every draw is a function of its own row alone"
    capabilities = frozenset(
        {
            "logprobs",
            "penalties",
            "logit_bias",
            "bad_words",
            "allowed_token_ids",
            "seed",
            "min_p",
            "candidates",
            "logits_processors",
            "logprobs_modes",
            "logprob_token_ids",
        }
    )

    def probe(self, need: SamplerNeed) -> Fit:
        """Fits every device but mps, which has no float64 (probabilities are summed from float64)."""
        reasons = self.missing_capabilities(need.required)
        hints: list[str] = []
        if need.device.split(":")[0] == "mps":
            reasons.append("sample_torch needs float64, which the device mps does not have")
            hints.append("run on cpu or cuda")
        return Fit.judge(reasons, hints)

    def create(self, need: SamplerNeed, settings: Any, plugins: PluginRegistry) -> TorchSampler:
        """Build the sampler; state for `need.max_rows` rows is allocated here."""
        from paged_sample_torch.sampler import TorchSampler

        return TorchSampler(need)


@hookimpl
def paged_sampler() -> TorchSamplerProvider:
    """Register the provider."""
    return TorchSamplerProvider()
