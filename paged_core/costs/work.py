"""What a step computes, as a handful of numbers, and what a model must read and multiply for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from paged_core.api.batch import StepPlan
    from paged_core.api.model import ModelSpec


class StepWork(NamedTuple):
    """One step. Tokens, unless said otherwise.

    A sequence that computes one token and has computed others before decodes; every other one prefills, in one piece
    or in chunks.
    """

    prefill_tokens: int = 0
    prefill_squares: int = 0  # sum of end^2 - begin^2 over the chunks: L^2 for a prompt computed at once
    prefill_context: int = 0  # sum of what the prefilling sequences hold after the step
    num_prefills: int = 0  # sequences
    num_decodes: int = 0  # sequences, and tokens
    decode_context: int = 0  # sum of what the decoding sequences hold after the step
    num_draws: int = 0

    @property
    def num_tokens(self) -> int:
        """All that pass through the layers."""
        return self.prefill_tokens + self.num_decodes

    @property
    def mixed(self) -> bool:
        """Whether prompts are computed beside decodes."""
        return self.prefill_tokens > 0 and self.num_decodes > 0

    def without_decodes(self) -> StepWork:
        """The same step, had its prompts been alone."""
        return self._replace(num_decodes=0, decode_context=0, num_draws=max(0, self.num_draws - self.num_decodes))

    def without_prefills(self) -> StepWork:
        """The same step, had its decodes been alone."""
        return StepWork(num_decodes=self.num_decodes, decode_context=self.decode_context, num_draws=self.num_decodes)


class CostModel(Protocol):
    """Seconds of a step, moves of blocks not included. Pure: the same work always costs the same."""

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step that does `work`, which is not empty. ConfigError for work it has no answer for."""
        ...

    def describe(self) -> str:
        """One line: what it is and where its numbers are from."""
        ...


def work_of(plan: StepPlan) -> StepWork:
    """The work of a plan. A few column operations, however many sequences run."""
    num_seqs, num_tokens, ends = len(plan.rows), plan.num_tokens, plan.seq_lens
    draws = len(plan.sample_rows)
    if num_tokens == num_seqs and (not plan.started or int(ends.min()) > 1):  # whoever begins is told to the sampler
        return StepWork(num_decodes=num_seqs, decode_context=int(ends.sum(dtype="int64")), num_draws=draws)
    counts = plan.query_start[1:] - plan.query_start[:-1]
    prefills = (counts > 1) | (ends == 1)
    ends_long = ends.astype("int64")
    context, prefill_ends = int(ends_long.sum()), ends_long[prefills]
    begins = prefill_ends - counts[prefills]
    num_prefills = len(prefill_ends)
    num_decodes, prefill_context = num_seqs - num_prefills, int(prefill_ends.sum())
    return StepWork(
        prefill_tokens=num_tokens - num_decodes,
        prefill_squares=int((prefill_ends * prefill_ends - begins * begins).sum()),
        prefill_context=prefill_context,
        num_prefills=num_prefills,
        num_decodes=num_decodes,
        decode_context=context - prefill_context,
        num_draws=draws,
    )


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What a model reads and multiplies. Elements are counted, not bytes; matrices only (norms and biases are small).

    layer_elements   in all layers, experts once each
    expert_elements  of those, in experts; of a token's way only `expert_share` of them
    head_elements    the matrix that makes logits
    other_elements   what is stored besides and read by row only: embeddings and, where it is stored, a separate head
    kv_elements      one token's keys and values in all layers
    pair_ops         operations of one token attending to one other, in all layers
    """

    num_layers: int
    layer_elements: int
    expert_elements: int
    expert_share: float
    head_elements: int
    other_elements: int
    kv_elements: int
    pair_ops: int
    hidden_size: int

    @property
    def stored_elements(self) -> int:
        """Parameters, nearly."""
        return self.layer_elements + self.other_elements

    @property
    def token_ops(self) -> float:
        """Operations of one token in the layers' matrices: two for every element on its way."""
        return 2.0 * (self.layer_elements - self.expert_elements * (1.0 - self.expert_share))

    def read_elements(self, num_tokens: int) -> float:
        """Elements of the layers that a step of `num_tokens` reads: experts that no token chose are left alone."""
        if not self.expert_elements:
            return float(self.layer_elements)
        chosen = 1.0 - (1.0 - self.expert_share) ** num_tokens
        return self.layer_elements - self.expert_elements * (1.0 - chosen)


def model_work(spec: ModelSpec) -> ModelWork:
    """What a model of this shape reads and multiplies."""
    hidden, q_size, kv_size = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = hidden * (2 * q_size + 2 * kv_size)
    matrices = 3 if spec.gated_mlp else 2
    layers = experts = 0
    share = 1.0
    for layer in range(spec.num_layers):
        layers += attention
        if spec.moe is not None and spec.is_moe(layer):
            size = spec.moe.num_experts * 3 * hidden * spec.moe.intermediate_size
            layers += size + spec.moe.num_experts * hidden
            experts += size
            share = spec.moe.num_experts_per_token / spec.moe.num_experts
        else:
            layers += matrices * hidden * spec.intermediate_size
    width = spec.embedding_projection or hidden
    head = spec.vocab_size * width
    positions = (spec.max_position + spec.position_offset) * hidden if spec.position == "learned" else 0
    projections = 2 * hidden * width if spec.embedding_projection else 0
    return ModelWork(
        num_layers=spec.num_layers,
        layer_elements=layers,
        expert_elements=experts,
        expert_share=share,
        head_elements=head,
        other_elements=head * (1 if spec.tie_embeddings else 2) + positions + projections,
        kv_elements=2 * spec.num_layers * kv_size,
        pair_ops=4 * spec.num_layers * q_size,
        hidden_size=hidden,
    )
