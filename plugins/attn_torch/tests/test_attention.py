"""attn_torch against a naive dense attention written differently: no paging, one query and one head at a time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from paged_attn_torch import TorchAttentionProvider
from paged_attn_torch.attention import TorchAttention

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.attention import AttentionLayer, AttentionNeed
from paged_core.api.batch import Batch
from paged_core.api.provider import PluginSettings

NEED = AttentionNeed("cpu", "float32", "float32", num_heads=4, num_kv_heads=2, head_dim=16, block_size=4)
LAYER = AttentionLayer(index=0, scale=0.25)
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


def create(need: AttentionNeed = NEED) -> TorchAttention:
    backend = TorchAttentionProvider().create(need, PluginSettings(), None)
    assert isinstance(backend, TorchAttention)
    return backend


@dataclass
class Case:
    """Sequences of known keys and values, of which the last `new` positions are computed in this step."""

    need: AttentionNeed
    batch: Batch
    cache: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor  # of this step's tokens
    v: torch.Tensor
    histories: list[tuple[torch.Tensor, torch.Tensor]]  # each [length, kv_heads, head_dim]


def make_case(need: AttentionNeed, lengths: list[int], new: list[int], seed: int = 0) -> Case:
    """Random content in permuted blocks; every slot that no sequence owns holds NaN (museum 44)."""
    generator = torch.Generator().manual_seed(seed)
    dtype, kv_dtype = getattr(torch, need.dtype), getattr(torch, need.kv_dtype)

    def random(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, need.head_dim, generator=generator)

    size = need.block_size
    layout = create(need).layout(sum(-(-length // size) for length in lengths) + 5)
    cache = torch.full(layout.shape, torch.nan, dtype=kv_dtype)
    free = np.random.default_rng(seed).permutation(layout.shape[1]).tolist()
    tables = np.full((len(lengths) + 2, 64), -7, np.int32)
    rows = np.random.default_rng(seed).permutation(len(lengths) + 2)[: len(lengths)].astype(np.int32)
    histories, positions, slots = [], [], []
    for row, length, count in zip(rows, lengths, new, strict=True):
        keys, values = random(length, need.num_kv_heads).to(kv_dtype), random(length, need.num_kv_heads).to(kv_dtype)
        histories.append((keys, values))
        tables[row, : -(-length // size)] = [free.pop() for _ in range(-(-length // size))]
        where = [int(tables[row, p // size]) * size + p % size for p in range(length)]
        for p in range(length - count):
            cache[0].flatten(0, 1)[where[p]], cache[1].flatten(0, 1)[where[p]] = keys[p], values[p]
        positions += range(length - count, length)
        slots += where[length - count :]
    starts = np.cumsum([0, *new], dtype=np.int32)
    batch = Batch(
        num_tokens=int(starts[-1]),
        num_seqs=len(lengths),
        query_start=starts,
        seq_lens=np.array(lengths, np.int32),
        rows=rows,
        tables=tables,
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int64),
    )
    tail = [
        (keys[len(keys) - n :], values[len(values) - n :]) for (keys, values), n in zip(histories, new, strict=True)
    ]
    q = random(int(starts[-1]), need.num_heads).to(dtype)
    k, v = torch.cat([pair[0] for pair in tail]), torch.cat([pair[1] for pair in tail])
    return Case(need, batch, cache, q, k.to(dtype), v.to(dtype), histories)


def run(case: Case, layer: AttentionLayer = LAYER) -> tuple[torch.Tensor, torch.Tensor | None]:
    backend = create(case.need)
    out = torch.full_like(case.q, torch.nan)
    lse = backend.forward(layer, case.q, case.k, case.v, case.cache, backend.plan(case.batch), out)
    return out, lse


def dense(case: Case, layer: AttentionLayer = LAYER) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in float64: for each query, each head, the keys it may see."""
    outputs, sums = [], []
    group = case.need.num_heads // case.need.num_kv_heads
    for token in range(case.batch.num_tokens):
        index = int(np.searchsorted(case.batch.query_start, token, side="right")) - 1
        position = int(case.batch.positions[token])
        begin = 0 if layer.window is None else max(0, position - layer.window + 1)
        keys, values = (part[begin : position + 1].double() for part in case.histories[index])
        for head in range(case.need.num_heads):
            logits = keys[:, head // group] @ case.q[token, head].double() * layer.scale
            if layer.softcap is not None:
                logits = layer.softcap * torch.tanh(logits / layer.softcap)
            outputs.append(logits.softmax(0) @ values[:, head // group])
            sums.append(logits.logsumexp(0))
    shape = (case.batch.num_tokens, case.need.num_heads)
    return torch.stack(outputs).view(*shape, -1), torch.stack(sums).view(shape)


def assert_equal_dense(case: Case, layer: AttentionLayer = LAYER) -> None:
    out, _ = run(case, layer)
    expected, _ = dense(case, layer)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCES[case.need.kv_dtype], rtol=0)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 256])
def test_decode_at_block_edges(block_size: int) -> None:
    edges = [1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1]
    lengths = [length for length in edges if length > 0]
    assert_equal_dense(make_case(replace(NEED, block_size=block_size), lengths, [1] * len(lengths)))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_prefill_chunk_and_decode_in_one_batch(block_size: int, window: int | None) -> None:
    lengths, new = [1, 9, 17, 16, 5, 20], [1, 9, 3, 16, 1, 7]
    case = make_case(replace(NEED, block_size=block_size), lengths, new)
    assert_equal_dense(case, replace(LAYER, window=window))


@pytest.mark.parametrize("num_heads, num_kv_heads", [(4, 4), (4, 2), (4, 1), (6, 2)])
@pytest.mark.parametrize("head_dim", [8, 24, 80])
def test_head_layouts(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    need = replace(NEED, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert_equal_dense(make_case(need, [6, 11, 3], [6, 2, 1]))


@pytest.mark.parametrize("window", [None, 6])
def test_softcap(window: int | None) -> None:
    layer = replace(LAYER, scale=2.0, softcap=3.0, window=window)
    assert_equal_dense(make_case(NEED, [13, 8], [13, 1]), layer)


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_element_types(dtype: str, kv_dtype: str) -> None:
    case = make_case(replace(NEED, dtype=dtype, kv_dtype=kv_dtype), [9, 4], [5, 1])
    out, _ = run(case)
    assert out.dtype == getattr(torch, dtype)
    expected, _ = dense(case)
    tolerance = max(TOLERANCES[dtype], TOLERANCES[kv_dtype])
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)


def test_log_sum_exp_comes_when_it_is_required() -> None:
    case = make_case(replace(NEED, required=frozenset({"lse"})), [9, 4], [5, 1])
    for layer in (LAYER, replace(LAYER, window=3, softcap=2.0)):
        _, lse = run(case, layer)
        assert lse is not None
        torch.testing.assert_close(lse.double(), dense(case, layer)[1], atol=1e-5, rtol=0)
    assert run(make_case(NEED, [9, 4], [5, 1]))[1] is None


def test_long_sequences_cross_tiles() -> None:
    case = make_case(replace(NEED, block_size=16, num_heads=2, num_kv_heads=1, head_dim=8), [601], [530])
    for layer in (LAYER, replace(LAYER, window=40)):
        assert_equal_dense(case, layer)


def test_strided_inputs_and_output() -> None:
    """Museum 42: q, k and v are views into one projection; out may be a view as well."""
    case = make_case(NEED, [9, 6, 4], [5, 6, 1])
    heads, kv_heads = NEED.num_heads, NEED.num_kv_heads
    fused = torch.cat([case.q, case.k, case.v], dim=1)
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    assert not q.is_contiguous()
    wide = torch.full((case.batch.num_tokens, heads + 3, NEED.head_dim), torch.nan)
    backend = create()
    backend.forward(LAYER, q, k, v, case.cache, backend.plan(case.batch), wide[:, 1 : heads + 1])
    torch.testing.assert_close(wide[:, 1 : heads + 1].double(), dense(case)[0], atol=1e-5, rtol=0)
    assert wide[:, 0].isnan().all()
    assert wide[:, heads + 1 :].isnan().all()


def test_sequences_may_share_blocks() -> None:
    """Two sequences read the same two blocks and go on in their own."""
    case = make_case(NEED, [11, 11], [1, 2])
    first, second = case.batch.rows
    case.batch.tables[second, :2] = case.batch.tables[first, :2]
    for part in (0, 1):
        case.histories[1][part][:8] = case.histories[0][part][:8]
    assert_equal_dense(case)


@pytest.mark.parametrize("lengths", [[1, 5, 7, 8], [8, 8, 8, 8, 8, 8]])
@pytest.mark.parametrize("block_size", [4, 16])
def test_neighbours_change_no_bit(lengths: list[int], block_size: int) -> None:
    """A20, A21, and the capability batch_invariant."""
    need = replace(NEED, block_size=block_size)
    case = make_case(need, lengths, lengths)
    together, _ = run(case)
    starts = case.batch.query_start
    for order in ([1], [3, 0], [2, 3, 1]):
        parts = [slice(starts[i], starts[i + 1]) for i in order]
        batch = replace(
            case.batch,
            num_tokens=sum(lengths[i] for i in order),
            num_seqs=len(order),
            query_start=np.cumsum([0, *(lengths[i] for i in order)], dtype=np.int32),
            seq_lens=case.batch.seq_lens[order],
            rows=case.batch.rows[order],
            positions=np.concatenate([case.batch.positions[part] for part in parts]),
            slots=np.concatenate([case.batch.slots[part] for part in parts]),
        )
        q, k, v = (torch.cat([tensor[part] for part in parts]) for tensor in (case.q, case.k, case.v))
        alone, _ = run(Case(need, batch, torch.full_like(case.cache, torch.nan), q, k, v, []))
        assert torch.equal(alone, torch.cat([together[part] for part in parts])), order


def test_a_negative_slot_writes_nothing() -> None:
    """A padded token's key and value go nowhere; the others are not shifted by it."""
    case = make_case(NEED, [6, 5], [3, 2])
    expected, _ = dense(case)
    before = case.cache.clone()
    case.batch.slots[3] = -1
    backend = create()
    out = torch.full_like(case.q, torch.nan)
    backend.forward(LAYER, case.q, case.k, case.v, case.cache, backend.plan(case.batch), out)
    torch.testing.assert_close(out[:3].double(), expected[:3], atol=1e-5, rtol=0)
    changed = (case.cache != before).flatten(3).any(-1) & ~case.cache.isnan().flatten(3).any(-1)
    assert sorted(changed[0].flatten().nonzero().flatten().tolist()) == sorted(s for s in case.batch.slots if s >= 0)


def test_scaled_keys_and_values_come_back() -> None:
    case = make_case(NEED, [6], [6])
    layer = replace(LAYER, k_scale=4.0, v_scale=0.5)
    assert_equal_dense(case, layer)
    slot = int(case.batch.slots[0])
    torch.testing.assert_close(case.cache[0].flatten(0, 1)[slot], case.k[0] / 4)
    torch.testing.assert_close(case.cache[1].flatten(0, 1)[slot], case.v[0] / 0.5)


def test_a_batch_may_be_read_only() -> None:
    case = make_case(NEED, [6, 3], [2, 1])
    for array in (case.batch.slots, case.batch.tables, case.batch.seq_lens, case.batch.query_start):
        array.flags.writeable = False
    assert_equal_dense(case)


def test_copies_touch_their_targets_in_all_layers() -> None:
    backend = create()
    caches = [torch.randn(backend.layout(8).shape) for _ in range(3)]
    before = [cache.clone() for cache in caches]
    backend.copy_blocks(caches, [BlockCopy(1, 5), BlockCopy(1, 6), BlockCopy(4, 0)])
    for cache, old in zip(caches, before, strict=True):
        for target, source in enumerate([4, 1, 2, 3, 4, 1, 1, 7]):
            assert torch.equal(cache[:, target], old[:, source])


def test_swapping_out_and_in_keeps_every_bit() -> None:
    """Museum 26: a hundred round trips through other blocks."""
    backend = create(replace(NEED, kv_dtype="bfloat16"))
    device = [torch.randn(backend.layout(6).shape).bfloat16() for _ in range(2)]
    host = [torch.zeros(backend.layout(9).shape).bfloat16() for _ in range(2)]
    expected = [cache.clone() for cache in device]
    generator = np.random.default_rng(0)
    for _ in range(100):
        pairs = list(zip(range(6), generator.permutation(9)[:6].tolist(), strict=True))
        backend.swap_blocks(device, host, [SwapPair(*pair) for pair in pairs])
        for cache in device:
            cache.fill_(torch.nan)
        backend.swap_blocks(host, device, [SwapPair(dst, src) for src, dst in pairs])
    assert all(torch.equal(cache, old) for cache, old in zip(device, expected, strict=True))


def test_nothing_to_move_is_no_work() -> None:
    backend = create()
    cache = torch.zeros(backend.layout(2).shape)
    backend.copy_blocks([cache], [])
    backend.swap_blocks([cache], [cache.clone()], [])
    backend.swap_blocks([], [], [])
    assert cache.eq(0).all()


def test_layout_states_its_bytes() -> None:
    layout = create(replace(NEED, kv_dtype="bfloat16")).layout(10)
    assert layout.shape == (2, 10, 4, 2, 16)
    cache = torch.empty(layout.shape, dtype=getattr(torch, layout.dtype))
    assert cache.nbytes == 10 * layout.bytes_per_block
    assert layout.shape[layout.block_axis] == 10


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"dtype": "float64"}, "float64"),
        ({"kv_dtype": "float8_e5m2"}, "float8_e5m2"),
        ({"dtype": "uint8"}, "activations of type uint8"),
        ({"block_size": 0}, "block size 0"),
        ({"block_size": 257}, "block size 257"),
        ({"num_kv_heads": 3}, "4 query heads cannot share 3"),
        ({"required": frozenset({"fused_rope"})}, "fused_rope"),
    ],
)
def test_probe_says_why_not(change: dict[str, Any], reason: str) -> None:
    fit = TorchAttentionProvider().probe(replace(NEED, **change))
    assert not fit.ok
    assert reason in " ".join(fit.reasons)


def test_probe_accepts_what_it_declares() -> None:
    provider = TorchAttentionProvider()
    assert provider.probe(replace(NEED, required=provider.capabilities, windows=(5,), softcap=30.0)).ok


def test_importing_the_plugin_stays_light() -> None:
    code = "import sys, paged_attn_torch; print([m for m in ('torch', 'triton', 'numba') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
