"""A cache of uint8: the codes in it are the contract's, and what is read is exact, whatever multiplies them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from paged_attn_cpu import CpuAttentionProvider

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.attention import AttentionLayer
from paged_core.native.processor import has_quads

CODES = {"kv_dtype": "uint8", "block_size": 16, "head_dim": 64}
CELL = 16
EXACT = {"atol": 2e-4, "rtol": 2e-4}  # queries have 16 bits of their largest element, weights of their row's in a tile
quads = pytest.mark.parametrize("int8_quads", [True, False], ids=["instruction", "plain"])


def parts_of(block, kv_heads: int, block_size: int, width: int):
    """A block's cells: codes of K [heads, cells, width / 4, 16, 4], numbers [heads, cells, 4, 16] and codes of V."""
    num_cells, size = block_size // CELL, CELL * width
    block = block.numpy()
    keys = block[: kv_heads * num_cells * (size + 256)].reshape(kv_heads, num_cells, size + 256)
    values = block[kv_heads * num_cells * (size + 256) :].reshape(kv_heads, num_cells, width // 16, 4, 16, 4)
    numbers = keys[..., size:].copy().view(np.float32).reshape(kv_heads, num_cells, 4, CELL)
    return keys[..., :size].reshape(kv_heads, num_cells, width // 4, CELL, 4), numbers, values


@quads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block_size, head_dim", [(16, 64), (48, 40)])
def test_the_cache_holds_the_contracts_codes(world, dtype, block_size, head_dim, int8_quads):
    shape = {"dtype": dtype, "block_size": block_size, "head_dim": head_dim, "int8_quads": int8_quads}
    paged = world([(0, 50)], **(CODES | shape))
    paged.run()
    width = -(-head_dim // 16) * 16
    for position in range(50):
        block, offset = divmod(paged.slot(0, position), block_size)
        keys, numbers, values = parts_of(paged.cache[block], 2, block_size, width)
        cell, lane = divmod(offset, CELL)
        for rows, codes, (step, start), less in (
            (paged.data[0][1], keys[:, cell, :, lane], (0, 1), 0),
            (paged.data[0][2], values[:, cell, :, lane // 4, :, lane % 4], (2, 3), 128),
        ):
            x = rows[position].float().numpy()
            least, most = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
            wanted = np.rint((x - least) * (np.float32(255) / (most - least))).astype(np.uint8) ^ less
            assert np.array_equal(codes.reshape(2, width)[:, :head_dim], wanted)
            steps = (most - least) / np.float32(255)
            assert np.array_equal(numbers[:, cell, step, lane], steps[:, 0])
            assert np.array_equal(numbers[:, cell, start, lane], (least + np.float32(less) * steps)[:, 0])


@quads
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (9, 3), (7, 1), (12, 2), (13, 1)], ids=lambda heads: f"{heads}")
def test_every_group_reads_what_the_codes_say(world, heads, int8_quads):
    sequences = [(0, 1), (0, 5), (15, 1), (16, 1), (17, 20), (70, 1), (600, 1), (600, 30)]
    paged = world(sequences, heads=heads, int8_quads=int8_quads, **CODES)
    torch.testing.assert_close(paged.run()[0].double(), paged.expected()[0], **EXACT)


@quads
@pytest.mark.parametrize("head_dim", [1, 16, 40, 80, 128, 256])
@pytest.mark.parametrize("block_size", [16, 48, 256])
def test_every_head_size_and_block(world, head_dim, block_size, int8_quads):
    shape = {"head_dim": head_dim, "block_size": block_size, "int8_quads": int8_quads}
    paged = world([(0, 3), (300, 1), (65, 20)], **(CODES | shape))
    torch.testing.assert_close(paged.run()[0].double(), paged.expected()[0], **EXACT)


def test_log_sum_exp_window_and_softcap(world):
    paged = world([(0, 9), (100, 1), (600, 40)], required=frozenset({"lse"}), **CODES)
    layer = AttentionLayer(0, 0.125, window=50, softcap=3.0)
    out, lse = paged.run(layer=layer)
    wanted, wanted_lse = paged.expected(layer=layer)
    torch.testing.assert_close(out.double(), wanted, **EXACT)
    torch.testing.assert_close(lse.double(), wanted_lse, **EXACT)


def test_the_longest_products_do_not_overflow(world):
    """256 columns of the largest query against the largest codes: the sums of both digits reach 2 ** 31 together."""
    paged = world([(40, 1)], **(CODES | {"head_dim": 256}))
    q, k, _ = paged.data[0]
    q.fill_(3.0)
    k.fill_(1.0)
    k[:, :, 0] = 0.0
    k[::2] = 1.0 - k[::2]  # every other key scores next to nothing: a sum that wraps takes its place
    paged.run([(0, 0, 41)])
    layer = AttentionLayer(0, 4e-3)
    torch.testing.assert_close(paged.run(layer=layer)[0].double(), paged.expected(layer=layer)[0], **EXACT)


def test_far_away_keys_of_little_weight_count_in_full(world):
    """One key takes most of the weight, 2,000 others little each and much together: none is rounded away."""
    paged = world([(2000, 1)], heads=(1, 1), **CODES)
    q, k, v = paged.data[0]
    k.zero_()
    q.fill_(1.0)
    k[3, 0, :32], k[3, 0, 32:] = 2.5, -0.5
    v.fill_(-1.0)
    v[:, :, ::2] = 1.0
    v[3] *= -1
    paged.run([(0, 0, 2001)])
    layer = AttentionLayer(0, 0.12)
    torch.testing.assert_close(paged.run(layer=layer)[0].double(), paged.expected(layer=layer)[0], **EXACT)


@pytest.mark.skipif(not has_quads(), reason="this processor has no AVX512-VNNI: both ways are the same")
def test_plain_operations_give_the_products_of_the_instruction(world):
    """Only the exponential differs."""
    sequences = [(0, 40), (130, 1), (600, 1)]
    fast, plain = (world(sequences, int8_quads=flag, **CODES) for flag in (True, False))
    torch.testing.assert_close(fast.run()[0], plain.run()[0], atol=2e-5, rtol=0)


@quads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_do_not_depend_on_company_threads_or_blocks(world, dtype, int8_quads):
    shape = CODES | {"heads": (9, 3), "dtype": dtype, "int8_quads": int8_quads}
    sequences = [(700, 1), (0, 5), (33, 1), (600, 70), (1100, 1)]
    together = world(sequences, threads=2, **shape).run()[0]
    start = 0
    for index, (_, new) in enumerate(sequences):
        for alone in (world(sequences, threads=1, **shape), world(sequences, **(shape | {"block_size": 32}))):
            out, _ = alone.run([alone.spans[index]])
            assert torch.equal(out, together[start : start + new]), f"sequence {index}"
        start += new


@quads
@pytest.mark.parametrize("common", [64, 320, 640])
def test_a_shared_prefix_changes_no_bit(world, common, int8_quads):
    sequences = [(common + own, 1) for own in (0, 17, 64, 130)]
    paged = world(sequences, heads=(8, 2), int8_quads=int8_quads, **CODES)
    first = paged.tables[paged.rows[0], : common // 16]
    for row in paged.rows[1:]:
        paged.tables[row, : common // 16] = first
    for index in range(1, len(sequences)):
        for part in (1, 2):
            paged.data[index][part][:common] = paged.data[0][part][:common]
    paged.run([(0, 0, common)])
    paged.run([(i, common, prefix - common) for i, (prefix, _) in enumerate(sequences) if prefix > common])
    apart = paged.run()[0]
    batch = replace(paged.batch(paged.spans), shared_prefixes=[(paged.rows, common // 16)])
    q, k, v = paged.inputs(paged.spans)
    out = torch.full_like(q, float("nan"))
    layer = AttentionLayer(0, paged.head_dim**-0.5)
    paged.backend.forward(layer, q, k, v, paged.cache, paged.backend.plan(batch), out)
    assert torch.equal(out, apart)
    torch.testing.assert_close(out.double(), paged.expected()[0], **EXACT)


def test_chunks_of_a_prefill_leave_the_same_bytes_and_results(world):
    whole, cut = (world([(0, 100)], **CODES) for _ in range(2))
    expected = whole.run()[0]
    pieces = [cut.run([(0, begin, min(33, 100 - begin))])[0] for begin in range(0, 100, 33)]
    assert torch.equal(whole.cache, cut.cache)
    assert torch.equal(torch.cat(pieces)[:99], expected[:99])  # a chunk of one token is split like a decode


def test_copies_and_swaps_carry_what_scales_the_codes(world):
    paged = world([(40, 1), (90, 1)], **CODES)
    expected = paged.run([(0, 40, 1)])[0]
    host = paged.new_cache(3)
    own, others = (paged.tables[paged.rows[i], :3].tolist() for i in range(2))
    paged.backend.swap_blocks([paged.cache], [host], [SwapPair(src, dst) for dst, src in enumerate(own)])
    paged.cache[own] = 255
    paged.backend.swap_blocks([host], [paged.cache], [SwapPair(src, dst) for src, dst in enumerate(others)])
    paged.tables[paged.rows[0], :3] = others
    assert torch.equal(paged.run([(0, 40, 1)])[0], expected)
    paged.backend.copy_blocks([paged.cache], [BlockCopy(others[1], own[0])])
    paged.tables[paged.rows[0], 1] = own[0]
    assert torch.equal(paged.run([(0, 40, 1)])[0], expected)


def test_a_block_counts_its_codes_and_what_scales_them(world):
    layout = world([(1, 1)], **(CODES | {"block_size": 32})).backend.layout(7)
    assert layout.bytes_per_block == 2 * 2 * 32 * (64 + 8)  # K and V, KV heads, slots, codes and two fp32 each
    assert (layout.shape, layout.dtype, layout.block_axis) == ((7, layout.bytes_per_block), "uint8", 0)


@pytest.mark.parametrize("block_size", [1, 8, 24])
def test_blocks_that_are_no_whole_cells_are_refused_with_the_cure(world, block_size):
    need = replace(world([(1, 1)], **CODES).need, block_size=block_size)
    fit = CpuAttentionProvider().probe(need)
    assert not fit.ok
    assert f"not of {block_size}" in fit.reasons[0]
    assert fit.hints == ("--block-size=16",)
