"""A shape is a model without a file: complete, repeatable, finite, and known by its name alone."""

from __future__ import annotations

import pytest
import torch

from paged_core import LLM, SamplingParams
from paged_core.api.loader import LoaderNeed
from paged_core.bench.shapes import RandomLoader
from paged_core.costs.models import MODELS
from paged_core.errors import RequestError
from paged_core.model.weights import checked, num_parameters
from paged_core.plugins import load_plugins

MODULE = "paged_core.bench.shapes"


def test_the_larger_shape_has_one_billion_parameters() -> None:
    assert num_parameters(RandomLoader(MODELS["llama-1.1b"]).spec()) == 1_100_048_384


def test_the_shapes_of_llama_3_have_their_parameters() -> None:
    assert num_parameters(RandomLoader(MODELS["llama-3-8b"]).spec()) == 8_030_261_248
    assert num_parameters(RandomLoader(MODELS["llama-3-1b"]).spec()) == 1_235_814_400


def test_weights_are_made_where_they_go() -> None:
    loader = RandomLoader(MODELS["tiny"], "meta")
    assert {tensor.device.type for _, tensor in loader.weights()} == {"meta"}
    provider = next(one.provider for one in load_plugins(modules=[MODULE]).of_kind("loader") if "random" in one.name)
    made = provider.create(LoaderNeed("random:tiny", device="meta"), None, None)
    assert next(made.weights())[1].is_meta


def test_weights_are_complete_and_every_time_the_same() -> None:
    loader = RandomLoader(MODELS["tiny"])
    once, again = (dict(checked(loader.spec(), loader.weights())) for _ in range(2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in once.items())
    assert {tensor.dtype for tensor in once.values()} == {torch.bfloat16}
    matrix = once["layers.0.mlp.down.weight"].float()
    assert matrix.std().item() == pytest.approx(0.02, rel=0.1)
    assert len(matrix.unique(dim=0)) == len(matrix)
    assert once["norm.weight"].eq(1).all()


def test_matrices_beyond_what_is_drawn_repeat_it_without_equal_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.bench.shapes._DRAWN", 1009)
    matrix = dict(RandomLoader(MODELS["tiny"]).weights())["head.weight"]
    assert torch.equal(matrix.view(-1)[:1009], matrix.view(-1)[1009:2018])
    assert len(matrix.unique(dim=0)) == len(matrix)


def test_names_are_known_by_their_prefix_only() -> None:
    provider = next(one.provider for one in load_plugins(modules=[MODULE]).of_kind("loader") if "random" in one.name)
    assert provider.probe(LoaderNeed("random:tiny")).ok
    for name in ("tiny", "random:nonesuch", "random:"):
        fit = provider.probe(LoaderNeed(name))
        assert not fit.ok
        assert "random:llama-1.1b" in fit.reasons[0]


def test_an_engine_runs_a_shape_and_says_that_it_knows_no_text() -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    with LLM("random:tiny", plugin_modules=(MODULE,), attn="attn_torch", num_blocks=16, threads=1) as llm:
        assert len(llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids) == 4
        with pytest.raises(RequestError, match="give token ids"):
            llm.generate("Hello", params, use_tqdm=False)
