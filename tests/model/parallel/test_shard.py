"""Which part of a model a rank holds: sizes that work, shapes, and that the parts together are the whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_core.api.model import ModelSpec, MoeSpec
from paged_core.errors import ConfigError
from paged_core.model.parallel.shard import (
    Shard,
    ShardCut,
    check_size,
    fitting_sizes,
    inner_range,
    kv_head_range,
    local_spec,
    vocabulary_range,
)
from paged_core.model.weights import expected_shapes

LLAMA = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=101,
    hidden_size=24,
    num_layers=2,
    num_heads=6,
    num_kv_heads=3,
    head_dim=4,
    intermediate_size=50,
    max_position=32,
)
SPECS = {
    "llama": LLAMA,
    "biases": replace(LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True, tie_embeddings=True, head_bias=True),
    "one-kv-head": replace(LLAMA, num_kv_heads=1, qkv_bias=True),
    "sandwich": replace(LLAMA, num_kv_heads=6, norm_placement="sandwich", qk_norm=True),
    "opt": replace(
        LLAMA,
        num_kv_heads=6,
        norm="layer",
        norm_bias=True,
        position="learned",
        position_offset=2,
        gated_mlp=False,
        mlp_bias=True,
        embedding_projection=8,
    ),
    "moe": replace(LLAMA, moe=MoeSpec(3, 2, 33), moe_layers=(True, False)),
}
CUTS = [(name, size) for name, spec in SPECS.items() for size in fitting_sizes(spec)]
SMOLLM2 = replace(LLAMA, num_heads=9, num_kv_heads=3, hidden_size=576, head_dim=64, intermediate_size=1536)


def group(size):
    return [Shard(rank, size) for rank in range(size)]


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "heads, kv_heads, sizes",
    [
        (9, 3, [1, 3, 9]),
        (32, 8, [1, 2, 4, 8, 16, 32]),
        (12, 1, [1, 2, 3, 4, 6, 12]),
        (12, 4, [1, 2, 4, 12]),
        (7, 7, [1, 7]),
    ],
)
def test_sizes_divide_the_query_heads_and_share_out_the_kv_heads(heads, kv_heads, sizes):
    assert fitting_sizes(replace(SMOLLM2, num_heads=heads, num_kv_heads=kv_heads)) == sizes


def test_another_size_is_refused_with_those_that_work():
    with pytest.raises(ConfigError, match=r"for 2 ranks: its 9 query heads \(3 KV heads\) do not .*: 1, 3, 9$"):
        check_size(SMOLLM2, 2)
    with pytest.raises(ConfigError, match=r"for 6 ranks: its 4 KV heads neither divide .*: 1, 2, 4, 12$"):
        local_spec(replace(SMOLLM2, num_heads=12, num_kv_heads=4), Shard(0, 6))
    with pytest.raises(ConfigError, match="at least one rank"):
        check_size(SMOLLM2, 0)
    for size in (1, 3, 9):
        check_size(SMOLLM2, size)


def test_a_rank_without_work_is_refused():
    narrow = replace(LLAMA, num_kv_heads=6, intermediate_size=2)
    assert fitting_sizes(narrow) == [1, 2]
    with pytest.raises(ConfigError, match="inner size of 2 leaves ranks without work"):
        ShardCut(narrow, Shard(0, 3))
    assert fitting_sizes(replace(narrow, moe=MoeSpec(3, 2, 33))) == [1, 2, 3, 6], "no layer is as narrow as that"
    assert fitting_sizes(replace(narrow, moe=MoeSpec(3, 2, 33), moe_layers=(True, False))) == [1, 2]


def test_a_rank_outside_of_its_group_is_refused():
    with pytest.raises(ConfigError, match="rank 3 is not in a group of 3"):
        Shard(3, 3)
    with pytest.raises(ConfigError, match="rank -1"):
        Shard(-1, 3)


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, size", CUTS)
def test_every_part_has_the_shape_that_the_local_spec_expects(name, size):
    spec = SPECS[name]
    for shard in group(size):
        cut = ShardCut(spec, shard)
        shapes = {name: tuple(cut(name, torch.zeros(shape)).shape) for name, shape in expected_shapes(spec).items()}
        assert shapes == expected_shapes(local_spec(spec, shard))


def whole_on_every_rank(name):
    return "norm" in name or "router" in name or "positions" in name or "project" in name


@pytest.mark.parametrize("name, size", CUTS)
def test_the_parts_together_are_the_whole_and_nobody_has_more_than_its_share(name, size):
    spec = SPECS[name]
    for key, shape in expected_shapes(spec).items():
        whole = torch.arange(1, math.prod(shape) + 1, dtype=torch.float32).view(shape)
        parts = [ShardCut(spec, shard)(key, whole) for shard in group(size)]
        if whole_on_every_rank(key):
            assert all(torch.equal(part, whole) for part in parts), key
        elif key.endswith(("attn.o.bias", "down.bias")):
            assert torch.equal(sum(parts), whole), key
        elif ".attn.k." in key or ".attn.v." in key:
            heads = [whole.view(spec.num_kv_heads, -1)[kv_head_range(spec, shard)] for shard in group(size)]
            assert all(torch.equal(part.flatten(), head.flatten()) for part, head in zip(parts, heads, strict=True))
        else:
            axis = 1 if key.endswith(("attn.o.weight", "down.weight")) else 0
            joined = torch.cat(parts, dim=axis)
            assert torch.equal(joined.narrow(axis, 0, shape[axis]), whole), key
            assert not joined.narrow(axis, shape[axis], joined.shape[axis] - shape[axis]).any(), "padding is zero"


@given(st.integers(1, 12), st.integers(1, 12))
def test_query_heads_find_their_kv_head_on_their_own_rank(kv_heads, heads_each):
    spec = replace(LLAMA, num_kv_heads=kv_heads, num_heads=kv_heads * heads_each, intermediate_size=1000)
    for size in fitting_sizes(spec):
        for shard in group(size):
            local = local_spec(spec, shard)
            assert local.num_heads % local.num_kv_heads == 0
            here = kv_head_range(spec, shard)
            for head in range(local.num_heads):
                of_all = (shard.rank * local.num_heads + head) // heads_each
                assert here[head // (local.num_heads // local.num_kv_heads)] == of_all
            assert local.num_kv_heads == -(-kv_heads // size)


@given(st.integers(1, 5000), st.integers(1, 16))
def test_shares_of_an_inner_size_are_complete_and_even_and_suit_the_kernels(total, size):
    size = min(size, total)
    shares = [inner_range(total, shard) for shard in group(size)]
    assert [i for share in shares for i in share] == list(range(total))
    fits = total % 16 == 0 and total >= 16 * size
    lengths = [len(share) for share in shares]
    assert min(lengths) > 0
    assert max(lengths) - min(lengths) <= (16 if fits else 1)
    assert not fits or all(length % 16 == 0 for length in lengths)


@given(st.integers(1, 1000), st.integers(1, 12))
def test_shares_of_the_vocabulary_are_complete_and_as_wide_as_they_are_padded_to(total, size):
    spec = replace(LLAMA, vocab_size=total)
    shares = [vocabulary_range(spec, shard) for shard in group(size)]
    assert [token for share in shares for token in share] == list(range(total))
    assert all(share.start == min(rank * -(-total // size), total) for rank, share in enumerate(shares))


def test_a_part_views_what_it_was_cut_from():
    """So that of a mapped file nothing else comes into memory."""
    tensor = torch.zeros(72, 24)
    cut = ShardCut(LLAMA, Shard(1, 3))
    for name, shape in (("layers.0.attn.q.weight", (24, 24)), ("layers.1.mlp.down.weight", (24, 50))):
        whole = torch.zeros(shape)
        assert cut(name, whole).untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert torch.equal(cut("norm.weight", tensor), tensor)


def test_a_group_of_one_has_everything():
    assert local_spec(LLAMA, Shard()) is LLAMA
    whole = torch.ones(101, 24)
    assert ShardCut(LLAMA, Shard())("embed.weight", whole) is whole
