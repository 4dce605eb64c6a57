"""What a user gets back. Names and fields are vLLM's, so that switching is a changed import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token, its rank (1 = most probable) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds on the engine's clock; None until known. All outputs of a request share one, kept up to date.

    num_cached_tokens      prompt tokens of the first admission found in the prefix cache
    num_generation_tokens  output tokens of all branches
    longest_output         output tokens of the longest branch
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    longest_output: int = 0

    @property
    def time_in_queue(self) -> float | None:
        """From arrival to the first step it ran in."""
        return _between(self.arrival_time, self.first_scheduled_time)

    @property
    def prefill_time(self) -> float | None:
        """From the first step it ran in to the first token."""
        return _between(self.first_scheduled_time, self.first_token_time)

    @property
    def decode_time(self) -> float | None:
        """From the first token to the end."""
        return _between(self.first_token_time, self.finished_time)

    @property
    def inference_time(self) -> float | None:
        """From the first step it ran in to the end."""
        return _between(self.first_scheduled_time, self.finished_time)

    @property
    def e2e_latency(self) -> float | None:
        """From arrival to the end."""
        return _between(self.arrival_time, self.finished_time)

    @property
    def time_to_first_token(self) -> float | None:
        """From arrival to the first token (TTFT)."""
        return _between(self.arrival_time, self.first_token_time)

    @property
    def mean_time_per_output_token(self) -> float | None:
        """Seconds a token of the longest branch, the first one left out (TPOT); None below two tokens."""
        decode = self.decode_time
        return None if decode is None or self.longest_output < 2 else decode / (self.longest_output - 1)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(slots=True)
class CompletionOutput:
    """One branch of an answer. `text`, `token_ids` and `logprobs` hold everything so far, or with output_kind DELTA
    what is new; `cumulative_logprob` always counts everything.

    finish_reason  None while running, then stop | length | repetition | abort | error
    stop_reason    the stop string or stop token id that ended it, "repetition_detected"; else None
    score          of a beam: cumulative_logprob / length ** length_penalty; None without beam search
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None

    def finished(self) -> bool:
        """Whether the branch has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one request, so far or final. `error` says why a request failed on its own. Log-probabilities are
    lists of dicts, or `FlatLogprobs` where flat_logprobs asked for them; with DELTA those of the prompt come once."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: Sequence[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    notes: list[str] = field(default_factory=list)
