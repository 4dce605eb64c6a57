"""What this engine's sampler can do for a request, settled before anything runs: counts resolved, misfits refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.errors import PagedError, RequestError

if TYPE_CHECKING:
    from paged_core.api.params import SamplingParams
    from paged_core.engine.config import EngineConfig

_NEEDS = {
    "logprobs": "logprobs",
    "presence_penalty": "penalties",
    "frequency_penalty": "penalties",
    "repetition_penalty": "penalties",
    "logit_bias": "logit_bias",
    "bad_words": "bad_words",
    "allowed_token_ids": "allowed_token_ids",
    "logprob_token_ids": "logprob_token_ids",
    "min_p": "min_p",
    "seed": "seed",
    "best_of": "logprobs",
    "prompt_logprobs": "logprobs",
    "use_beam_search": "candidates",
    "logits_processors": "logits_processors",
    "structured_outputs": "logits_processors",
}
"""Parameter -> the sampler's capability that it takes."""
_NEUTRAL: tuple[Any, ...] = (None, False, 0, [], {})


_DRAWS_ONLY = ("logprob_token_ids", "repetition_detection")
"""What beams, which are chosen among candidates, cannot have."""


def own_params(params: SamplingParams, facts: EngineConfig) -> SamplingParams:
    """The engine's own copy of a request's parameters, with -1 resolved to the size of the vocabulary.

    RequestError for a parameter that the sampler lacks, too many log-probabilities, or a logits processor that cannot
    compose.
    """
    params.check_vocabulary(facts.vocab_size)
    _check_capabilities(params, facts)
    own = params.clone()
    own.logprobs = _num_logprobs("logprobs", params.logprobs, facts)
    own.prompt_logprobs = _num_logprobs("prompt_logprobs", params.prompt_logprobs, facts)
    if params.logprob_token_ids is not None:
        own.logprobs = 0
    for name in _DRAWS_ONLY if params.use_beam_search else ():
        if getattr(params, name) is not None:
            raise RequestError(f"{name} does not go with use_beam_search", name)
    if params.ranked and facts.logprobs_mode.endswith("_logits"):
        raise RequestError(f"best_of ranks by log-probability; this engine reports {facts.logprobs_mode}", "best_of")
    for processor in own.logits_processors or ():
        try:
            processor.check(own, facts.vocab_size)
        except PagedError:
            raise
        except Exception as error:  # a caller's object may raise anything, and fails its own request only
            name = type(processor).__name__
            raise RequestError(f"the logits processor {name} cannot be used: {error}", "logits_processors") from error
    return own


def _check_capabilities(params: SamplingParams, facts: EngineConfig) -> None:
    for name, capability in _NEEDS.items():
        value = getattr(params, name)
        off = value in _NEUTRAL if name not in ("logprobs", "prompt_logprobs", "seed") else value is None
        if name == "repetition_penalty":
            off = value == 1.0
        if not off and capability not in facts.sampler_capabilities:
            chosen = facts.plugins.get("sampler", "the sampler")
            raise RequestError(f"{name} needs a sampler with {capability!r}; {chosen} does not have it", name)


def _num_logprobs(name: str, asked: int | None, facts: EngineConfig) -> int | None:
    most = facts.vocab_size if facts.max_logprobs == -1 else facts.max_logprobs
    num = facts.vocab_size if asked == -1 else asked
    if num is not None and num > most:
        said = f"-1 (all {num})" if asked == -1 else str(asked)
        raise RequestError(
            f"{name} asks for {said} tokens; this engine allows at most {most} (setting max_logprobs)", name
        )
    return num
