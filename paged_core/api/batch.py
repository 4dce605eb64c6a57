"""What travels between ledger and executor, and what the attention backend sees of it.

    StepPlan    ledger -> executor: one control message a step, plain numbers only
    StepResult  executor -> ledger: sampled tokens and what was asked along with them
    Batch       executor -> attention: the same step as arrays on the device side

Order inside a step: swap-outs, swap-ins, block copies, writes. A gang that returns and decodes in one step copies its
shared last block, which has only just come back: copies follow swap-ins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.allocator import BlockCopy, SwapPair
    from paged_core.api.params import SamplingParams


class RowStart(NamedTuple):
    """The sampler must (re)start its state for `row`: at admission, and whenever its own history may be off.

    `branch` and `seed` make the draws: they depend on (seed, branch, position) and on nothing else (law 16).
    `true_output_len`: output tokens after which a simulated model ends; None where a model decides itself.
    """

    row: int
    params: SamplingParams
    seed: int
    branch: int
    prompt: NDArray[np.int32]  # [prompt tokens]
    output: NDArray[np.int32]  # [output tokens so far]
    true_output_len: int | None = None


class PromptRows(NamedTuple):
    """Prompt log-probabilities asked of one sequence of the batch: flat token rows and the tokens they predict."""

    row: int
    first_position: int  # position of the first predicted token
    token_index: NDArray[np.int32]  # rows of the flat batch
    targets: NDArray[np.int32]  # [same length] the prompt tokens they predict
    num_logprobs: int


@dataclass(slots=True)
class StepPlan:
    """One step. Flat arrays run over the batch's tokens, sequence by sequence.

    token_ids, positions   int32 [tokens]
    query_start            int32 [sequences + 1]; sequence i computes tokens query_start[i] .. query_start[i + 1] - 1
    rows                   int32 [sequences]; table rows
    seq_lens               int32 [sequences]; length including this step's tokens
    changed_rows           int32; table rows whose blocks changed since the last plan (remote executors mirror these)
    sample_index           int32 [draws]; flat token row each draw reads; many-to-one (n draws may read one row)
    sample_rows            int32 [draws]; table row whose sampler state a draw uses
    sample_positions       int32 [draws]; position the drawn token will take in its sequence
    num_candidates         int32 [draws]; best tokens wanted besides the draw (beam search), 0 = none
    token_source           int32 [tokens], or None when every token is known (always so unless a step was in flight when
                           this one was planned): -1, the token is the one in token_ids; i >= 0, it is what draw i of
                           the step submitted just before drew (`sample_rows[i]` of that plan is this token's row) and
                           token_ids holds 0
    """

    step: int
    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    query_start: NDArray[np.int32]
    rows: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    sample_index: NDArray[np.int32]
    sample_rows: NDArray[np.int32]
    sample_positions: NDArray[np.int32]
    changed_rows: NDArray[np.int32]
    num_candidates: NDArray[np.int32] | None = None
    token_source: NDArray[np.int32] | None = None
    swap_out: list[SwapPair] = field(default_factory=list)
    swap_in: list[SwapPair] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    started: list[RowStart] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    prompt_rows: list[PromptRows] = field(default_factory=list)
    shared_prefixes: list[tuple[NDArray[np.int32], int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens computed this step."""
        return len(self.token_ids)

    @classmethod
    def empty(cls, step: int = 0) -> StepPlan:
        """A step in which nothing happens."""
        import numpy as np

        none, start = np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int32)
        return cls(step, none, none, start, none, none, none, none, none, none)


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Log-probabilities of some rows: the chosen token's, its rank (1 = best), and the k best.

    chosen float32 [rows]; rank int32 [rows]; token_ids int32 [rows, k]; logprobs float32 [rows, k], best first.
    """

    chosen: NDArray[np.float32]
    rank: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(slots=True)
class StepResult:
    """What a step produced. Draw i belongs to `plan.sample_rows[i]`.

    tokens      int32 [draws, k]; k = 1 unless a processor forced tokens after a draw (`SamplingParams.takes_forced`)
    num_tokens  int32 [draws]; how many of them were accepted, 0 .. k
    logprobs    draw -> TopLogprobs of its accepted tokens, for draws that asked
    candidates  for draws with num_candidates > 0
    prompt_logprobs  row -> (first position, TopLogprobs)
    failed      row -> why this one sequence failed (NaN logits); its neighbours are fine
    elapsed_s   duration of the step on the executor's own measure
    """

    step: int
    tokens: NDArray[np.int32]
    num_tokens: NDArray[np.int32]
    elapsed_s: float
    logprobs: dict[int, TopLogprobs] = field(default_factory=dict)
    candidates: dict[int, TopLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[int, TopLogprobs]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class DeviceBatch:
    """The arrays of a `Batch` as tensors on its device, same shapes and types. Only owned entries of `tables` hold.

    Under `graphs` they are views of buffers that stay where they are, so that captured work finds the next step there.
    """

    query_start: Tensor
    seq_lens: Tensor
    rows: Tensor
    tables: Tensor
    positions: Tensor
    slots: Tensor


@dataclass(slots=True)
class Batch:
    """A step as attention sees it. numpy arrays share memory with the plan; a device backend copies what it needs.

    num_tokens, num_seqs     sizes of the flat batch
    query_start              int32 [num_seqs + 1]
    seq_lens                 int32 [num_seqs]; context including this step's tokens
    rows                     int32 [num_seqs]; rows of `tables`
    tables                   int32 [max_rows, max_blocks]; the allocator's own array, not a copy
    positions                int32 [num_tokens]
    slots                    int64 [num_tokens]; block * block_size + offset each token's K and V go to; a negative
                             slot is written nowhere
    shared_prefixes          [(table rows, num_blocks)]: sequences that share leading blocks; empty by default
    rope                     per RopeSpec: (cos, sin), each float32 [num_tokens, rotary_dim / 2] for these positions;
                             only for backends that declare `fused_rope`
    on_device                the arrays on the device, where the executor has put them there already
    """

    num_tokens: int
    num_seqs: int
    query_start: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    rows: NDArray[np.int32]
    tables: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]
    shared_prefixes: list[tuple[NDArray[np.int32], int]] = field(default_factory=list)
    rope: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    on_device: DeviceBatch | None = None
