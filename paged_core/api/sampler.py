"""Samplers: from logits to tokens, next to the logits, inside the executor.

A row's draw depends on its own logits, parameters, seed, branch and position and on nothing else: not on neighbours,
not on batch order, not on preemption (law 16). Order of operations: raw logprobs are taken first; then the row's logits
processors in the order given, on float32; allowed tokens, bad words, min_tokens and bias; penalties; greedy rows end
here; temperature; min-p; top-k; top-p; draw.

With `logits_processors` a sampler takes a `fork` of each of the row's templates at `start` and lets it `accept` the
output there is; it calls `apply_rows` of each class with all the draws it works on, and `accept([token])` after each
draw. Whatever a processor raises fails that draw alone, with one line that names its class.

Log-probabilities of draws and prompts follow `SamplerNeed.logprobs_mode`: of the raw logits, or of what a draw was
chosen from (temperature and filters included; a greedy row has neither; nothing processes a prompt's logits), as
log-probabilities or as logits. A row with `logprob_token_ids` has these listed, in their order, instead of the best.
Masked tokens read -9999, so that everything can be written as JSON.

Capabilities: logprobs, penalties, logit_bias, bad_words, allowed_token_ids, seed, min_p, candidates, logits_processors,
logprobs_modes (all but raw_logprobs), logprob_token_ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.batch import RowStart, TopLogprobs


LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
"""What the engine's setting of this name may be; the first is the default. Names are vLLM's."""
CAPABILITIES = frozenset(
    {
        "logprobs",
        "penalties",
        "logit_bias",
        "bad_words",
        "allowed_token_ids",
        "seed",
        "min_p",
        "candidates",
        "logits_processors",
        "logprobs_modes",
        "logprob_token_ids",
    }
)
"""All that a sampler may declare."""


@dataclass(frozen=True, slots=True)
class SamplerNeed:
    """What the engine asks of a sampler. `eos_token_ids` are masked until a row's min_tokens."""

    device: str
    vocab_size: int
    max_rows: int
    eos_token_ids: tuple[int, ...] = ()
    required: frozenset[str] = frozenset()
    logprobs_mode: LogprobsMode = "raw_logprobs"


@dataclass(slots=True)
class Samples:
    """Result of one `sample`: tokens int32 [draws] (0 where failed); logprobs per draw that asked; failed draws with a
    reason. `candidates` are taken after processors, bias and penalties, masked tokens left out;
    `logprobs` as the need's mode says. `forced`: tokens that follow a draw without one, already accepted by the row's
    processor and counted as output; only for rows whose parameters say `takes_forced`."""

    tokens: NDArray[np.int32]
    logprobs: dict[int, TopLogprobs] = field(default_factory=dict)
    candidates: dict[int, TopLogprobs] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    forced: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Draws that were begun. `finish(told)` gives their samples once the host has the content of `told`.

    tokens   int64 [draws] on the logits' device, of the vocabulary even where a draw failed; what the next step may
             compute with before the host has seen it. None: the draws are done and `finish(None)` has them
    told     what the host has to see of the device, brought by the executor in its own time; None: nothing
    """

    tokens: Tensor | None
    told: Tensor | None
    finish: Callable[[NDArray[Any] | None], Samples]


class Sampler(ABC):
    """Keeps per-row state (parameters, token counts) from `start` to `end`."""

    @abstractmethod
    def start(self, start: RowStart) -> None:
        """Begin, or begin anew, with `start.row`: parameters, seed, prompt and output so far."""

    @abstractmethod
    def end(self, row: int) -> None:
        """Forget `row`. Unknown rows are left alone."""

    @abstractmethod
    def sample(
        self,
        logits: Tensor,
        rows: NDArray[np.int32],
        positions: NDArray[np.int32],
        num_candidates: NDArray[np.int32] | None = None,
    ) -> Samples:
        """Draw one token per row of `logits` [draws, vocab] (float; may be overwritten) and count it as output.

        `positions` are those the drawn tokens will take; output length so far = position - prompt length. A row whose
        logits hold NaN, or of which everything is masked, fails alone.
        """

    def begin(
        self,
        logits: Tensor,
        rows: NDArray[np.int32],
        positions: NDArray[np.int32],
        num_candidates: NDArray[np.int32] | None = None,
    ) -> Drawing:
        """`sample`, for executors that do not want the host to wait for the device.

        Draws are counted as by `sample`: before `end`, `start` and the next draws of their rows. The default waits.
        """
        samples = self.sample(logits, rows, positions, num_candidates)
        return Drawing(None, None, lambda _: samples)

    @abstractmethod
    def logprobs(self, logits: Tensor, targets: NDArray[np.int32], num_logprobs: int) -> TopLogprobs:
        """Log-probabilities of `targets` [rows] under `logits` [rows, vocab], with the best `num_logprobs`."""
