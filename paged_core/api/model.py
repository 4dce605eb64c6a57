"""ModelSpec: what a decoder-only model is, as plain numbers. Loaders produce it, decoder and executors consume it.

It names every difference between the supported families explicitly, so that nothing downstream asks for a family name.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary embedding. `kind` is default, linear, dynamic, llama3, yarn or longrope (the HF `rope_type`).

    `rotary_dim` <= head_dim dimensions are rotated, half-split pairs (i, i + rotary_dim/2). `attention_factor` scales
    cos and sin (yarn, longrope). Lengths are in tokens. Fields that a kind does not use stay at their defaults.
    """

    theta: float
    rotary_dim: int
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture-of-experts feed-forward: softmax router, top-k experts per token."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    normalize_top_k: bool = True


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer. Sizes count elements; per-layer tuples have `num_layers` entries.

    Weights follow the canonical names of `paged_core.model.weights`. All norms' weights are stored as the multiplier
    itself (Gemma's `1 + w` is folded in by the loader).
    """

    architecture: str  # as in config.json; read by messages and by the table of Hugging Face weight names only
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int  # longest sequence, in tokens, rope scaling included
    # norms: "rms" or "layer"; placement "pre", "post" (OPT-350m) or "sandwich" (Gemma 2 and 3: before and after)
    norm: str = "rms"
    norm_eps: float = 1e-6
    norm_bias: bool = False
    norm_in_float32: bool = False  # multiply by the weight before rounding back (Gemma); others round first
    norm_placement: str = "pre"
    final_norm: bool = True
    # attention
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float | None = None
    windows: tuple[int | None, ...] = ()  # per layer: sliding window in tokens, or None; () = no layer has one
    # positions: "rope" or "learned"
    position: str = "rope"
    position_offset: int = 0  # OPT adds 2 to learned positions
    ropes: tuple[RopeSpec, ...] = ()
    layer_ropes: tuple[int, ...] = ()  # per layer: index into ropes; () = all use ropes[0]
    # feed-forward: activation silu, gelu, gelu_tanh, relu, ...
    activation: str = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    moe: MoeSpec | None = None
    moe_layers: tuple[bool, ...] = ()  # () with moe set = every layer
    # embedding and head
    embedding_scale: float | None = None
    embedding_projection: int | None = None  # OPT-350m: width of the embedding, projected to hidden_size
    tie_embeddings: bool = False
    head_bias: bool = False
    logits_softcap: float | None = None
    # tokens
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # as stored: float32, bfloat16, float16; quantised weights count as bfloat16
    extra: tuple[tuple[str, str], ...] = field(default=())  # loader notes shown by `inspect`

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, or None for full attention."""
        return self.windows[layer] if self.windows else None

    @property
    def distinct_windows(self) -> tuple[int, ...]:
        """The sliding windows that occur, ascending."""
        return tuple(sorted({window for window in self.windows if window is not None}))

    def rope(self, layer: int) -> int:
        """Index into `ropes` for a layer, or -1 when positions are not rotary."""
        if not self.ropes:
            return -1
        return self.layer_ropes[layer] if self.layer_ropes else 0

    def is_moe(self, layer: int) -> bool:
        """Whether a layer's feed-forward is the mixture."""
        return self.moe is not None and (not self.moe_layers or self.moe_layers[layer])

    @property
    def scale(self) -> float:
        """Softmax scale of attention."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def kv_bytes_per_token(self, element_bytes: int, row_bytes: int = 0) -> int:
        """Bytes of keys and values one token occupies over all layers (paper, section 3: 2 x hidden x layers).

        row_bytes: what a quantised row, one token's key or value in one KV head, keeps besides its elements.
        """
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * element_bytes + row_bytes)
