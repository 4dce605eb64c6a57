"""Shard: the part of a model that one rank of a tensor-parallel group holds (Megatron-LM: Shoeybi et al., 2019).

    embed, head            rows of the vocabulary, padded to a multiple of the group
    attn.q                 rows of its query heads        attn.o      the columns that belong to them
    attn.k, attn.v         rows of its KV heads; with more ranks than KV heads several hold the same one
    gate, up               rows of its share of the inner size, in every expert       down    the columns that belong
    biases                 with their rows; those behind o and down on rank 0 alone, for the ranks' outputs are added
    norms, router, learned positions, projections of the embedding: whole on every rank

Rows before, columns after: between the two nobody needs what others have, so that a layer adds up twice and no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paged_core.api.executor import ExecutorNeed
    from paged_core.api.model import ModelSpec

    Cut = Callable[[Tensor], Tensor]

_UNIT = 16  # rows of gate, or of up, that native products keep together: shares that are multiples of it stay fast


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank of a group. `Shard()` is a group of one, which holds everything."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError for a rank outside of its group."""
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} is not in a group of {self.size}: ranks are 0 to {self.size - 1}")


def fitting_sizes(spec: ModelSpec) -> list[int]:
    """The sizes a group may have, ascending: every rank gets whole heads, as many as the others, and something to do.

    They divide the query heads, and divide the KV heads or are a multiple of them.
    """
    inner = min(_inner_sizes(spec))
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    return [
        size
        for size in range(1, min(heads, inner) + 1)
        if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    ]


def check_size(spec: ModelSpec, size: int) -> None:
    """Raises ConfigError when the model cannot be cut for `size` ranks, with the reason and the sizes that work."""
    fitting = fitting_sizes(spec)
    if size in fitting:
        return
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    if size < 1:
        why = "a group has at least one rank"
    elif heads % size:
        why = f"its {heads} query heads ({kv_heads} KV heads) do not divide evenly"
    elif kv_heads % size and size % kv_heads:
        why = f"its {kv_heads} KV heads neither divide evenly nor can each be held by as many ranks as the others"
    else:
        why = f"its inner size of {min(_inner_sizes(spec))} leaves ranks without work"
    raise ConfigError(
        f"{spec.architecture} cannot be cut for {size} ranks: {why}; sizes that work: {', '.join(map(str, fitting))}"
    )


def unfit(need: ExecutorNeed) -> list[str]:
    """Why a group of ranks cannot share the need's model, wherever they are: every reason. Light, as probes are."""
    found = []
    try:
        check_size(need.spec, need.world_size)
    except ConfigError as error:
        found.append(str(error))
    if need.quantization != "none":
        from paged_core.model.linear import missing_linear

        found += missing_linear(need)
    return found


def local_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """What the rank computes, as a spec of its own: its heads, its share of the inner size, its (padded) vocabulary.

    `paged_core.model.weights.expected_shapes` of it are the shapes of the rank's tensors. Raises ConfigError as
    `check_size` does.
    """
    check_size(spec, shard.size)
    if shard.size == 1:
        return spec
    moe = spec.moe and replace(spec.moe, intermediate_size=len(inner_range(spec.moe.intermediate_size, shard)))
    return replace(
        spec,
        vocab_size=-(-spec.vocab_size // shard.size),
        num_heads=len(head_range(spec, shard)),
        num_kv_heads=len(kv_head_range(spec, shard)),
        intermediate_size=len(inner_range(spec.intermediate_size, shard)),
        moe=moe,
    )


def head_range(spec: ModelSpec, shard: Shard) -> range:
    """The rank's query heads."""
    return _share(spec.num_heads, shard)


def kv_head_range(spec: ModelSpec, shard: Shard) -> range:
    """The rank's KV heads: those that its query heads read."""
    if shard.size > spec.num_kv_heads:
        head = shard.rank * spec.num_kv_heads // shard.size
        return range(head, head + 1)
    return _share(spec.num_kv_heads, shard)


def inner_range(size: int, shard: Shard) -> range:
    """The rank's share of an inner size, which need not divide evenly: in units that suit the kernels if it can be."""
    unit = _UNIT if size % _UNIT == 0 and size // _UNIT >= shard.size else 1
    units = _share(size // unit, shard)
    return range(units.start * unit, units.stop * unit)


def vocabulary_range(spec: ModelSpec, shard: Shard) -> range:
    """The tokens whose rows of embedding and head the rank holds; fewer on the last ranks, which are padded."""
    step = -(-spec.vocab_size // shard.size)
    begin = min(shard.rank * step, spec.vocab_size)
    return range(begin, min(begin + step, spec.vocab_size))


class ShardCut:
    """Cuts a rank's part out of canonical tensors: a view of what is given, but for padding."""

    def __init__(self, spec: ModelSpec, shard: Shard) -> None:
        """Raises ConfigError as `check_size` does."""
        check_size(spec, shard.size)
        self._shard = shard
        self._num_tokens = -(-spec.vocab_size // shard.size)
        tokens = vocabulary_range(spec, shard)
        q, kv = (_times(heads, spec.head_dim) for heads in (head_range(spec, shard), kv_head_range(spec, shard)))
        inner = inner_range(spec.intermediate_size, shard)
        expert = inner_range(spec.moe.intermediate_size, shard) if spec.moe else inner
        self._cuts: list[tuple[re.Pattern[str], Cut]] = [
            (re.compile(pattern), cut)
            for pattern, cut in (
                (r"embed\.weight|head\.(weight|bias)", lambda tensor: self._padded(_rows(tensor, tokens))),
                (r"layers\.\d+\.attn\.q\.(weight|bias)", lambda tensor: _rows(tensor, q)),
                (r"layers\.\d+\.attn\.[kv]\.(weight|bias)", lambda tensor: _rows(tensor, kv)),
                (r"layers\.\d+\.attn\.o\.weight", lambda tensor: _columns(tensor, q)),
                (r"layers\.\d+\.mlp\.(gate|up)\.(weight|bias)", lambda tensor: _rows(tensor, inner)),
                (r"layers\.\d+\.mlp\.down\.weight", lambda tensor: _columns(tensor, inner)),
                (r"layers\.\d+\.moe\.experts\.\d+\.(gate|up)\.weight", lambda tensor: _rows(tensor, expert)),
                (r"layers\.\d+\.moe\.experts\.\d+\.down\.weight", lambda tensor: _columns(tensor, expert)),
                (r"layers\.\d+\.(attn\.o|mlp\.down)\.bias", self._once),
                (_WHOLE, lambda tensor: tensor),
            )
        ]

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """The rank's part of the canonical tensor `name`, which has the whole model's shape."""
        if self._shard.size == 1:
            return tensor
        cut = next((cut for pattern, cut in self._cuts if pattern.fullmatch(name)), None)
        assert cut is not None, f"nothing says how {name} is cut"
        return cut(tensor)

    def _padded(self, rows: Tensor) -> Tensor:
        if len(rows) == self._num_tokens:
            return rows
        padded = rows.new_zeros((self._num_tokens, *rows.shape[1:]))
        padded[: len(rows)] = rows
        return padded

    def _once(self, bias: Tensor) -> Tensor:
        return bias if self._shard.rank == 0 else bias.new_zeros(bias.shape)


_WHOLE = (
    r"embed_positions\.weight|embed\.project_(in|out)\.weight|norm\.(weight|bias)"
    r"|layers\.\d+\.((attn|mlp)(_post)?_norm\.(weight|bias)|attn\.[qk]_norm\.weight|moe\.router\.weight)"
)


def _inner_sizes(spec: ModelSpec) -> list[int]:
    """The inner sizes of all kinds of feed-forward that the model has."""
    kinds = {spec.is_moe(layer) for layer in range(spec.num_layers)}
    dense = [spec.intermediate_size] if False in kinds else []
    return dense + ([spec.moe.intermediate_size] if spec.moe is not None and True in kinds else [])


def _share(count: int, shard: Shard) -> range:
    return range(shard.rank * count // shard.size, (shard.rank + 1) * count // shard.size)


def _times(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _rows(tensor: Tensor, part: range) -> Tensor:
    return tensor[part.start : part.stop]


def _columns(tensor: Tensor, part: range) -> Tensor:
    return tensor[:, part.start : part.stop]
