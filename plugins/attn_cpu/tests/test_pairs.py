"""bf16 by bf16: with the instruction for pairs and without it, the same laws hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paged_core.api.attention import AttentionLayer
from paged_core.native.processor import has_pairs

BF16 = {"dtype": "bfloat16", "kv_dtype": "bfloat16"}
PATHS = [
    pytest.param(True, marks=pytest.mark.skipif(not has_pairs(), reason="needs AVX512-BF16"), id="pairs"),
    pytest.param(False, id="widened"),
]
SEQUENCES = [(0, 1), (300, 1), (17, 5), (1100, 1), (0, 130), (63, 64), (254, 1)]


@pytest.mark.parametrize("bf16_pairs", PATHS)
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("head_dim", [8, 48, 64, 80, 128])
def test_both_paths_attend_to_what_is_written_among_nan(world, check, bf16_pairs, block_size, head_dim):
    """The cache is NaN wherever nobody wrote, the second key of a last pair included."""
    sequences = [(0, 1), (1, 1), (63, 1), (64, 1), (517, 1), (5, 40), (60, 9), (0, 70)]
    check(world(sequences, heads=(6, 2), head_dim=head_dim, block_size=block_size, bf16_pairs=bf16_pairs, **BF16))


@pytest.mark.parametrize("bf16_pairs", PATHS)
@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (10, 2)])
def test_rows_are_the_same_alone_in_chunks_and_in_any_block_size(world, bf16_pairs, heads):
    shape = {"heads": heads, "head_dim": 80, "bf16_pairs": bf16_pairs, **BF16}
    together, _ = world(SEQUENCES, block_size=16, **shape).run()
    alone = world(SEQUENCES, block_size=3, threads=1, **shape)
    assert torch.equal(torch.cat([alone.run([span])[0] for span in alone.spans]), together)
    chunked = world(SEQUENCES, block_size=16, **shape)
    pieces = [chunked.run([(4, first, 26)])[0] for first in range(0, 130, 26)]
    assert torch.equal(torch.cat(pieces), world(SEQUENCES, block_size=16, **shape).run([(4, 0, 130)])[0])


@pytest.mark.parametrize("bf16_pairs", PATHS)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (10, 1)])
def test_sharing_changes_no_bit_on_either_path(world, bf16_pairs, heads):
    paged = world([(720 + own, 1) for own in (3, 64, 7, 90)], heads=heads, head_dim=48, bf16_pairs=bf16_pairs, **BF16)
    num_blocks = 704 // paged.block_size
    for other in range(1, 4):
        paged.tables[paged.rows[other], :num_blocks] = paged.tables[paged.rows[0], :num_blocks]
    batch = paged.batch(paged.spans)
    results = []
    for sets in ([], [(paged.rows[[0, 1, 3]], num_blocks)]):
        q, k, v = paged.inputs(paged.spans)
        plan = paged.backend.plan(replace(batch, shared_prefixes=sets))
        out = torch.full_like(q, float("nan"))
        paged.backend.forward(AttentionLayer(0, 0.2), q, k, v, paged.cache, plan, out)
        results.append(out)
    assert plan.num_shared > 0
    assert not results[0].isnan().any()
    assert torch.equal(*results)


@pytest.mark.parametrize("bf16_pairs", PATHS)
@pytest.mark.parametrize("layer", [AttentionLayer(0, 0.3), AttentionLayer(0, 0.3, softcap=2.0)])
def test_scores_and_their_sum_are_as_exact_as_fp32(world, bf16_pairs, layer):
    """Only weights are rounded to bf16: queries are bf16 already, and the log-sum-exp adds unrounded weights."""
    needs = frozenset({"lse", "softcap"})
    paged = world([(700, 1), (0, 90)], head_dim=128, bf16_pairs=bf16_pairs, required=needs, **BF16)
    _, lse = paged.run(layer=layer)
    torch.testing.assert_close(lse.double(), paged.expected(layer=layer)[1], atol=2e-5, rtol=1e-6)


@pytest.mark.skipif(not has_pairs(), reason="needs AVX512-BF16")
def test_processors_without_the_instruction_widen(world, monkeypatch):
    """The paths differ in their last bits, which tells them apart."""
    shape = {"heads": (4, 2), "head_dim": 64, **BF16}
    pairs, _ = world(SEQUENCES, **shape).run()
    widened, _ = world(SEQUENCES, bf16_pairs=False, **shape).run()
    assert not torch.equal(pairs, widened)
    monkeypatch.setattr("paged_attn_cpu.backend.has_pairs", lambda: False)
    assert torch.equal(world(SEQUENCES, **shape).run()[0], widened)


def test_other_dtypes_do_not_know_pairs(world):
    """fp32 activations over a bf16 cache keep their unrounded queries."""
    shape = {"heads": (4, 2), "head_dim": 64, "dtype": "float32", "kv_dtype": "bfloat16"}
    assert torch.equal(world(SEQUENCES, **shape).run()[0], world(SEQUENCES, bf16_pairs=False, **shape).run()[0])


@pytest.mark.parametrize("bf16_pairs", PATHS)
@pytest.mark.parametrize("block_size", [5, 32])
@pytest.mark.parametrize("window", [1, 63, 64, 65, 300])
def test_windows_cut_tiles_and_cells_anywhere(world, check, bf16_pairs, block_size, window):
    sequences = [(700, 1), (130, 70), (0, 1), (0, 5), (64, 3)]
    shape = {"heads": (6, 2), "head_dim": 48, "block_size": block_size, "bf16_pairs": bf16_pairs, **BF16}
    check(world(sequences, **shape), AttentionLayer(0, 0.2, window=window))


@pytest.mark.parametrize("bf16_pairs", PATHS)
@pytest.mark.parametrize("scale", [0.0, -0.2])
def test_scales_that_are_not_positive(world, check, bf16_pairs, scale):
    """A maximum may be taken before it is scaled only if the scale is positive."""
    check(
        world([(70, 1), (5, 90)], head_dim=32, block_size=16, bf16_pairs=bf16_pairs, **BF16), AttentionLayer(0, scale)
    )


@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("head_dim", [40, 64])
def test_kernels_write_the_cells_that_the_layout_describes(world, block_size, head_dim):
    shape = {"heads": (4, 2), "head_dim": head_dim, "block_size": block_size, **BF16}
    read, written = world([(0, 100)], **shape), world([(0, 100)], **shape)
    written.run()
    read.sequences = [(100, 0)]
    read._fill_prefixes()
    assert read.backend.keeps_cells == has_pairs()
    assert torch.equal(read.cache.view(torch.int16), written.cache.view(torch.int16))


def test_blocks_of_no_whole_cells_keep_rows(world):
    assert not world([(0, 3)], block_size=24, **BF16).backend.keeps_cells
