"""What a user gets back. Names and fields are vLLM's, so that switching is a changed import."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token, its rank (1 = most probable) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds on the engine's clock; None until known."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class CompletionOutput:
    """One branch of an answer. `text` and `token_ids` hold everything so far.

    finish_reason  None while running, then stop | length | abort | error
    stop_reason    the stop string or stop token id that ended it; None for end-of-sequence and the rest
    score          of a beam: cumulative_logprob / length ** length_penalty; None without beam search
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None

    def finished(self) -> bool:
        """Whether the branch has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one request, so far or final. `error` says why a request failed on its own."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    notes: list[str] = field(default_factory=list)
