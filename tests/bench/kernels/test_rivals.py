"""Rivals attend to the same shapes; those that are not installed are judged by the calls they would make."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from paged_core.bench.kernels.cases import Case, Heads
from paged_core.bench.kernels.rivals import Contiguous, FlashAttn, FlashInfer, Rival

if TYPE_CHECKING:
    from paged_core.bench.site import Site

HEADS = Heads(4, 2, 16)


def attended(rival: Rival, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Softmax by hand of the rival's queries over keys and values [sequences, context, kv_heads, head_dim]."""
    group = HEADS.query // HEADS.kv
    keys, values = (each.repeat_interleave(group, dim=2) for each in (keys, values))
    logits = torch.einsum("bqhd,bkhd->bhqk", rival.q, keys) * HEADS.size**-0.5
    new, context = rival.case.new, rival.case.context
    hidden = torch.ones(new, context).triu(context - new + 1).bool()
    return torch.einsum("bhqk,bkhd->bqhd", logits.masked_fill(hidden, -torch.inf).softmax(-1), values)


@pytest.mark.parametrize("case", [Case(HEADS, 3, 10), Case(HEADS, 2, 10, 10), Case(HEADS, 2, 10, 4)], ids=str)
def test_contiguous_attention_is_causal_from_the_end(case: Case, site: Site) -> None:
    rival = Contiguous(case, torch.float32, 8, site)
    keys, values = rival.layers[-1].transpose(2, 3)
    torch.testing.assert_close(rival.run(), attended(rival, keys, values), atol=1e-5, rtol=1e-5)


def test_both_ways_of_telling_torch_about_groups_give_the_same(site: Site) -> None:
    rival = Contiguous(Case(HEADS, 3, 10), torch.float32, 8, site)
    k, v = rival.layers[0]
    torch.testing.assert_close(rival._grouped(k, v), rival._shared(k, v))


def test_layers_rotate_beyond_the_sites_caches(site: Site) -> None:
    assert Contiguous(Case(HEADS, 1, 8), torch.float32, 8, site).count == (1 << 14) // (2 * 8 * 2 * 16 * 4)


def test_what_is_not_installed_or_does_not_serve_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert FlashAttn.lacks("bfloat16", "cuda") == "not installed"
    assert Contiguous.lacks("bfloat16", "cpu") == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert FlashInfer.lacks("bfloat16", "cuda") == ""
    for dtype, device in (("bfloat16", "cpu"), ("float32", "cuda")):
        assert "16 bits on cuda" in FlashInfer.lacks(dtype, device)


def gathered(cache: torch.Tensor, tables: torch.Tensor, context: int) -> torch.Tensor:
    """[sequences, context, kv_heads, head_dim] of pages."""
    return cache[tables.long()].flatten(1, 2)[:, :context]


@pytest.mark.parametrize("case", [Case(HEADS, 3, 300), Case(HEADS, 2, 300, 40)], ids=str)
def test_flash_attn_is_handed_pages_of_256_and_their_table(
    case: Case, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash_attn_with_kvcache(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **given: Any
    ) -> torch.Tensor:
        assert k_cache.shape == (case.sequences * 2, 256, 2, 16)
        assert given["causal"] is True
        lengths, tables = given["cache_seqlens"], given["block_table"]
        assert (lengths.dtype, tables.dtype, lengths.tolist()) == (torch.int32, torch.int32, [300] * case.sequences)
        assert sorted(tables.flatten().tolist()) == list(range(case.sequences * 2))
        return attended(rival, gathered(k_cache, tables, 300), gathered(v_cache, tables, 300))

    module = ModuleType("flash_attn")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    rival = FlashAttn(case, torch.float32, 8, site)
    assert rival.run().shape == (case.sequences, case.new, 4, 16)


@pytest.mark.parametrize("case", [Case(HEADS, 3, 18), Case(HEADS, 2, 18, 5)], ids=str)
def test_flashinfer_plans_pages_of_the_block_size(case: Case, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[Any, ...]] = []

    class Wrapper:
        def __init__(self, workspace: torch.Tensor, layout: str, **flags: bool) -> None:
            assert (layout, workspace.dtype) == ("NHD", torch.uint8)

        def plan(self, *given: Any, **flags: Any) -> None:
            planned.append((given, flags))

        def run(self, q: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            assert kv[0].shape == (case.sequences * 3, 8, 2, 16)
            assert q.shape == (case.sequences * case.new, 4, 16)
            return q

    module = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper, BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr("paged_core.bench.kernels.rivals._WORKSPACE_BYTES", 16)
    rival = FlashInfer(case, torch.float32, 8, site)
    assert torch.equal(rival.run(), rival.q)
    ((given, flags),) = planned
    *starts, pages, indices, last, heads, kv_heads, size, page = given
    assert [one.tolist() for one in starts] == ([] if case.new == 1 else [[0, 5, 10]])
    assert pages.tolist() == [3 * i for i in range(case.sequences + 1)]
    assert sorted(indices.tolist()) == list(range(3 * case.sequences))
    assert last.tolist() == [2] * case.sequences
    assert (heads, kv_heads, size, page) == (4, 2, 16, 8)
    assert flags.get("causal", False) == (case.new > 1)
