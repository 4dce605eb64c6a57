"""Decoder: the one native model, in plain torch on any device and dtype, driven by a ModelSpec."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from paged_core.api.attention import AttentionLayer
from paged_core.model.compiled import CompiledLayers, hinders
from paged_core.model.fused import Fused
from paged_core.model.layers import DecoderLayer, FeedForward, LayerStep, Mlp, Norm, SelfAttention
from paged_core.model.linear.native import NativeLinear
from paged_core.model.moe import Mixture
from paged_core.model.parallel.shard import Shard, ShardCut, local_spec
from paged_core.model.parallel.vocabulary import SharedVocabulary
from paged_core.model.rope import rope_table
from paged_core.model.store import WeightStore
from paged_core.model.weights import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.api.model import ModelSpec
    from paged_core.model.parallel.collective import Collective
    from paged_core.model.place import Place
    from paged_core.tracing import Trace


log = logging.getLogger("paged_core.model")


class Decoder:
    """Token ids in, hidden states and logits out. Owns the weights; the KV caches and the plan belong to the caller.

    Call under `torch.inference_mode()`. `max_length` bounds positions: the rotary tables have so many rows.

    As one rank of a tensor-parallel group it holds that rank's part (`paged_core.model.parallel.shard`): all ranks make
    the same calls, hidden states are the same on all of them, and logits come together on rank 0.
    """

    def __init__(
        self, spec: ModelSpec, store: WeightStore, attention: Attention, fused_rope: bool, max_length: int
    ) -> None:
        """`spec`: of the whole model; what `store` holds, and whose part it is, is its own affair."""
        self.spec = spec
        self._part = store.spec
        self._vocabulary = None if store.collective is None else SharedVocabulary(spec, store.collective)
        self.fused_rope = fused_rope
        self.max_length = max_length
        self._attention = attention
        self._quantized = store.linears.quantized
        self._fused = store.fused
        self._embed = store.take("embed.weight")
        self.device = self._embed.device
        self.dtype = self._embed.dtype
        # rounded to the model's dtype first, as the reference does
        self._scale = None if spec.embedding_scale is None else self._embed.new_tensor(spec.embedding_scale)
        self._positions = store.take_if_any("embed_positions.weight")
        self._project_in = store.linear("embed.project_in") if spec.embedding_projection else None
        self._project_out = store.linear("embed.project_out") if spec.embedding_projection else None
        self._layers = [_layer(store.spec, store, index, fused_rope) for index in range(spec.num_layers)]
        self._norm = Norm(spec, store, "norm") if spec.final_norm else None
        # a tied head shares the embedding's values; packed for products they are a second copy
        head = self._embed if spec.tie_embeddings else store.take("head.weight")
        self._head = store.linears.make(head, store.take_if_any("head.bias"))
        self._logits = torch.empty((0, store.spec.vocab_size))
        self._compiled = self._compile()
        self._tables = [rope_table(rope, max_length, self.device) for rope in spec.ropes]

    def _compile(self) -> CompiledLayers | None:
        """All layers as one native call, where they are of that kind, on a CPU."""
        if self.device.type != "cpu":
            return None
        reason = hinders(self._layers, self._norm)
        if not reason:
            assert self._norm is not None
            assert isinstance(self._fused, Fused)
            log.info("layers run as one native call")
            return CompiledLayers(self._layers, self._norm, self._fused, self._attention)
        log.info("layers run operator by operator: %s", reason)
        return None

    @staticmethod
    def load(
        spec: ModelSpec,
        weights: Iterable[tuple[str, Tensor]],
        place: Place,
        attention: Attention,
        fused_rope: bool = False,
        max_length: int | None = None,
        collective: Collective | None = None,
    ) -> Decoder:
        """Build a decoder from a stream of canonical (name, tensor) pairs, each converted and dropped as it comes.

        `max_length`: the longest sequence the engine admits, when it is less than the model's; it also fixes the
        frequencies of length-dependent rotary embeddings (`paged_core.model.rope`). `collective`: the decoder is its
        rank, and `attention` has the rank's heads. Of each tensor the rank's part is cut out first; where tensors view
        a file, the rest of it is never in the process's own memory.
        Raises ModelFormatError for missing, doubled, unknown and misshapen tensors, ConfigError for a quantization that
        nothing here computes and for a group that the model cannot be cut for.
        """
        shard = Shard() if collective is None else Shard(collective.rank, collective.size)
        cut = ShardCut(spec, shard)
        store = WeightStore(local_spec(spec, shard), place, collective)
        for name, tensor in checked(spec, weights):
            store.put(name, cut(name, tensor))
        return Decoder(spec, store, attention, fused_rope, min(max_length or spec.max_position, spec.max_position))

    def watch(self, trace: Trace) -> None:
        """Time the parts of every layer from now on."""
        trace.watch(self, {"logits": "head", "embedded": "embed"})
        if self._fused is not None:
            trace.watch(self._fused, {"norm": "norm", "gate": "activation"})
        if self._compiled is not None:
            self._compiled.watch(trace)
        if self._vocabulary is not None:
            trace.watch(self._vocabulary.collective, {"all_reduce": "add up", "gather_logits": "gather logits"})
        for layer in self._layers:
            layer.watch(trace)

    def forward(self, token_ids: Tensor, positions: Tensor, kv: Sequence[Tensor], plan: Any) -> Tensor:
        """Hidden states after the last norm, [tokens, hidden].

        token_ids, positions int64 or int32 [tokens]; kv: one cache a layer; plan: what `attention.plan` made of the
        batch. Writes the tokens' keys and values.
        """
        part = self._part
        x = self.embedded(token_ids, positions)
        if self._compiled is not None:
            hidden = self._compiled.forward(x, kv, plan)
            if hidden is not None:
                return hidden
            log.info("layers run operator by operator: the attention backend offers no native calls")
            self._compiled = None
        ropes = [] if self.fused_rope else self.rope_tables(positions)
        out = torch.empty((x.shape[0], part.num_heads, part.head_dim), dtype=self.dtype, device=self.device)
        step = LayerStep(self._attention, plan, ropes, out)
        for layer, cache in zip(self._layers, kv, strict=True):
            x = layer(x, step, cache)
        return x if self._norm is None else self._norm(x)

    def rope_tables(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """cos and sin at `positions` for each RopeSpec: float32 [tokens, rotary_dim / 2] (for `Batch.rope`)."""
        return [(cos.index_select(0, positions), sin.index_select(0, positions)) for cos, sin in self._tables]

    def rope_room(self, num_tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Tensors of the shapes of `rope_tables`, for `fill_rope_tables`."""
        return [
            (cos.new_empty(num_tokens, cos.shape[1]), sin.new_empty(num_tokens, sin.shape[1]))
            for cos, sin in self._tables
        ]

    def fill_rope_tables(self, positions: Tensor, room: list[tuple[Tensor, Tensor]]) -> None:
        """`rope_tables` into tensors that are there already, whose addresses others hold."""
        for (cos, sin), (cos_room, sin_room) in zip(self._tables, room, strict=True):
            torch.index_select(cos, 0, positions, out=cos_room)
            torch.index_select(sin, 0, positions, out=sin_room)

    @property
    def is_part(self) -> bool:
        """Whether it is a rank of a group, and waits for the others in every layer."""
        return self._vocabulary is not None

    @property
    def waits_for_device(self) -> str:
        """Why a forward pass needs the host to read something of the device, or ""."""
        mixed = any(isinstance(layer.feed_forward, Mixture) for layer in self._layers)
        return "the host lists the experts that a mixture has chosen" if mixed else ""

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]: `out` if it is given, else good until the next call.

        Ranks other than 0 of a group send theirs and get what they computed, [rows, `logits_width`].
        """
        if self._project_out is not None:
            hidden = self._project_out(hidden)
        if self._vocabulary is None:
            logits = self._own_logits(hidden, out)
        else:
            logits = self._vocabulary.logits(self._own_logits(hidden, None), out)
        cap = self.spec.logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @property
    def logits_width(self) -> int:
        """Columns of `logits`."""
        return self.spec.vocab_size if self._vocabulary is None else self._vocabulary.width

    def _own_logits(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        """Logits of the tokens whose rows of the head are here."""
        if isinstance(self._head, NativeLinear):
            logits = self._head.wide(hidden, self._logits_buffer(len(hidden)) if out is None else out)
        else:
            logits = self._head(hidden)
            logits = logits.float() if out is None else out.copy_(logits)
            if self._quantized:  # integers know no NaN: a row that the model spoiled stays spoiled
                logits[hidden.isnan().any(dim=-1)] = torch.nan
        return logits

    def _logits_buffer(self, rows: int) -> Tensor:
        """Memory of the call before, if it suffices: new pages cost as much as a tenth of the product."""
        if len(self._logits) < rows:
            self._logits = torch.empty((rows, self._part.vocab_size))
        return self._logits[:rows]

    def embedded(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """What enters the first layer, [tokens, hidden]."""
        if self._vocabulary is None:
            x = functional.embedding(token_ids, self._embed)
        else:
            x = self._vocabulary.embedding(token_ids, self._embed)
        if self._scale is not None:
            x = x * self._scale
        if self._project_in is not None:
            x = self._project_in(x)
        if self._positions is not None:
            x = x + functional.embedding(positions + self.spec.position_offset, self._positions)
        return x


def _layer(spec: ModelSpec, store: WeightStore, index: int, fused_rope: bool) -> DecoderLayer:
    name = f"layers.{index}"
    constants = AttentionLayer(
        index=index,
        scale=spec.scale,
        window=spec.window(index),
        softcap=spec.attention_softcap,
        rope=spec.rope(index),
    )
    attention = SelfAttention(spec, store, f"{name}.attn", constants, fused_rope)
    feed_forward: FeedForward
    if spec.moe is not None and spec.is_moe(index):
        feed_forward = Mixture(spec, spec.moe, store, f"{name}.moe")
    else:
        feed_forward = Mlp(spec, store, f"{name}.mlp")
    return DecoderLayer(spec, store, name, attention, feed_forward)
