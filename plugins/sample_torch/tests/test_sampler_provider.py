"""The provider: light to import, honest about what it can do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paged_sample_torch import TorchSamplerProvider

from paged_core.api.sampler import Sampler, SamplerNeed


def test_importing_the_plugin_pulls_in_no_heavy_library():
    code = "import sys, paged_sample_torch; print([m for m in ('torch', 'triton', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_it_fits_every_capability_of_its_kind(device):
    required = {"logprobs", "penalties", "logit_bias", "bad_words", "allowed_token_ids", "seed", "min_p", "candidates"}
    need = SamplerNeed(device, 100, 4, required=frozenset(required))
    assert TorchSamplerProvider().probe(need).ok


def test_what_it_lacks_is_refused_with_all_reasons():
    fit = TorchSamplerProvider().probe(SamplerNeed("mps", 100, 4, required=frozenset({"mirostat"})))
    assert not fit.ok
    assert "mirostat" in fit.reasons[0]
    assert "float64" in fit.reasons[1]
    assert fit.hints


def test_create_builds_a_sampler():
    provider = TorchSamplerProvider()
    sampler = provider.create(SamplerNeed("cpu", 100, 4), provider.Settings(), plugins=None)
    assert isinstance(sampler, Sampler)
