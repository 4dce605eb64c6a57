"""SamplingParams: how the tokens of one request are chosen. Names, meanings and defaults are vLLM's."""

from __future__ import annotations

import copy
import difflib
import hashlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from paged_core.api.logits import LogitsProcessor
from paged_core.api.output_kind import RequestOutputKind
from paged_core.api.repetition import RepetitionDetectionParams
from paged_core.api.structured import StructuredOutputsParams
from paged_core.api.values import (
    bias_values,
    integer,
    number,
    optional_integer,
    sequence,
    shown,
    strings,
    token_ids,
)
from paged_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_N = 256
MAX_STOPS = 64
MAX_BAD_WORDS = 256
MAX_PROCESSORS = 16
MAX_LOGPROB_TOKEN_IDS = 128
GREEDY_EPSILON = 1e-5


@dataclass(slots=True)
class SamplingParams:
    """How to sample one request. Validated on construction: RequestError (a ValueError) names the field.

    No value is clamped, rounded or converted from text: it is taken as it is or refused. Lists are copied.

    n, best_of            sequences returned / drawn (best_of >= n)
    temperature           0 (below 1e-5) = greedy
    top_p, top_k, min_p   nucleus; k <= 0 = off, k >= vocabulary = off; minimum relative to the best probability
    seed                  makes the draws repeatable; they then depend on nothing but seed, branch and position.
                          None or -1 = the engine picks one
    presence_penalty, frequency_penalty   subtracted from logits of tokens already in the output, in [-2, 2]
    repetition_penalty    > 0; divides positive and multiplies negative logits of tokens in prompt or output
    stop                  strings; text ends before the earliest completed match (or after it, with
                          include_stop_str_in_output)
    stop_token_ids        token ids that end the sequence; obeyed even with ignore_eos
    ignore_eos            go on after the model's end-of-sequence token
    min_tokens            no end-of-sequence, stop id or stop string before so many tokens
    max_tokens            None = up to the model's limit
    truncate_prompt_tokens   only the last k tokens of the prompt; -1 = as many as leave room for max_tokens
    logprobs              None = off, 0 = the sampled token only, k = the k best as well, -1 = the whole vocabulary; of
                          what, and how many are allowed, say the engine's settings logprobs_mode and max_logprobs
    prompt_logprobs       the same for every prompt token but the first
    logprob_token_ids     besides the sampled token, log-probabilities of these instead of the k best
    flat_logprobs         both come as `FlatLogprobs`: a few flat lists instead of an object a token
    detokenize            False = token ids only, no text; excludes stop strings
    skip_special_tokens   leave control tokens out of the text
    spaces_between_special_tokens   kept for vLLM's sake: the tokenizers used here never add such spaces
    output_kind           what a streamed output holds: everything so far (CUMULATIVE), what is new (DELTA); or no
                          output before the last (FINAL_ONLY)
    skip_reading_prefix_cache   compute the whole prompt, whatever is cached; None = only where prompt_logprobs need it
    repetition_detection  ends a sequence that repeats itself, with finish_reason "repetition"
    logit_bias            token id -> value in [-100, 100] added to its logit
    allowed_token_ids     only these may be sampled
    bad_words             strings whose token sequences may not be completed
    logits_processors     `LogitsProcessor` objects that change the logits of this request first of all
    structured_outputs    the form the text must have, `StructuredOutputsParams` or a mapping of its fields; runs before
                          `logits_processors`; excludes ignore_eos
    use_beam_search       beam search instead of draws: the best n of beam_width beams (best_of or n if None) by score,
                          cumulative log-probability / length ** length_penalty; temperature must be 0 or 1
    length_penalty_over   the length counted: "output", generated tokens with the end token (transformers), or
                          "sequence", prompt and output without it (vLLM)
    early_stopping        with enough finished beams: True = stop, False = unless a running one is better now, "never" =
                          unless one might still become better
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    truncate_prompt_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logits_processors: list[LogitsProcessor] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    use_beam_search: bool = False
    beam_width: int | None = None
    length_penalty: float = 1.0
    length_penalty_over: str = "output"
    early_stopping: bool | str = False
    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False, repr=False)
    """Filled by the engine from `bad_words` and the tokenizer; not for callers."""

    def __post_init__(self) -> None:
        self.stop = strings("stop", [self.stop] if isinstance(self.stop, str) else self.stop, MAX_STOPS)
        self.bad_words = strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        self.logits_processors = _processors(self.logits_processors)
        self.structured_outputs = StructuredOutputsParams.of(self.structured_outputs)
        if self.structured_outputs and self.ignore_eos:
            raise RequestError("ignore_eos forbids the end, and a complete grammar allows nothing else", "ignore_eos")
        self.stop_token_ids = token_ids("stop_token_ids", self.stop_token_ids)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids is empty: nothing could be sampled", "allowed_token_ids")
        if self.logprob_token_ids is not None:
            self.logprob_token_ids = token_ids("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
        self.output_kind = RequestOutputKind.of(self.output_kind)
        self.repetition_detection = RepetitionDetectionParams.of(self.repetition_detection)
        if self.logit_bias is not None:
            self.logit_bias = bias_values(self.logit_bias)
        if self.seed == -1 and not isinstance(self.seed, (bool, float)):
            self.seed = None
        self._check_numbers()
        self._check_flags()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from names and values that came from outside, a JSON object for instance.

        Raises RequestError for a name that is no parameter, or a bad value.
        """
        names = [item.name for item in fields(cls) if item.init]
        for name in values:
            if name in NOT_SUPPORTED:
                raise RequestError(f"{name} is not supported: {NOT_SUPPORTED[name]}", name)
            if name not in names:
                close = difflib.get_close_matches(str(name), names, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
                raise RequestError(f"there is no sampling parameter {str(name)[:100]!r}{hint}", str(name)[:100])
        return cls(**values)

    @property
    def greedy(self) -> bool:
        """Whether every token is the most probable one."""
        return self.temperature < GREEDY_EPSILON

    @property
    def num_sequences(self) -> int:
        """Table rows the request may need at once: max(n, best_of, beam_width)."""
        return max(self.n, self.best_of or 1, self.beam_width or 1)

    @property
    def ranked(self) -> bool:
        """Whether more sequences are drawn than returned: the best n by cumulative log-probability are kept."""
        return self.best_of is not None and self.best_of > self.n and not self.use_beam_search

    @property
    def takes_forced(self) -> bool:
        """Whether tokens that a logits processor forces may be appended without a draw: one sequence, nothing to be
        reported of each token, and nothing else that could forbid one."""
        one = self.n == 1 and not self.ranked and not self.use_beam_search and len(self.logits_processors or ()) == 1
        plain = self.logprobs is None and self.logprob_token_ids is None and self.repetition_detection is None
        return one and plain and self.allowed_token_ids is None and not (self.bad_words or self.bad_words_token_ids)

    def for_sampler(self) -> SamplingParams:
        """These parameters as the sampler needs them: ranking wants the log-probability of every drawn token, beams
        are chosen among candidates instead of drawn."""
        if self.use_beam_search:
            params = copy.copy(self)
            params.temperature, params.logprobs = 0.0, None
            return params
        if not self.ranked or self.logprobs is not None:
            return self
        params = copy.copy(self)
        params.logprobs = 0
        return params

    def clone(self) -> SamplingParams:
        """A copy with lists of its own. Logits processors are templates that nobody changes, and are shared."""
        twin = copy.copy(self)
        for name in _LISTS:
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin

    @property
    def stop_strings(self) -> list[str]:
        """`stop`, always as a list."""
        return list(self.stop or [])

    def _check_numbers(self) -> None:
        integer("n", self.n, 1, MAX_N)
        optional_integer("best_of", self.best_of, self.n, MAX_N)
        number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        number("temperature", self.temperature, 0.0, 100.0)
        number("top_p", self.top_p, 0.0, 1.0, above=True)
        integer("top_k", self.top_k, -1, 2**63 - 1)
        number("min_p", self.min_p, 0.0, 1.0)
        optional_integer("seed", self.seed, -(2**63), 2**64 - 1)
        optional_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})", "min_tokens")
        optional_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, 2**31 - 1)
        optional_integer("logprobs", self.logprobs, -1, 2**31 - 1)
        optional_integer("prompt_logprobs", self.prompt_logprobs, -1, 2**31 - 1)
        optional_integer("beam_width", self.beam_width, 1, MAX_N)
        number("length_penalty", self.length_penalty, -10.0, 10.0)

    def _check_flags(self) -> None:
        for name in (*_FLAGS, _SKIP):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == _SKIP and value is None):
                raise RequestError(f"{name} must be true or false, not {shown(value)}", name)
        if self.truncate_prompt_tokens == 0:
            raise RequestError("truncate_prompt_tokens is 0: nothing would be left", "truncate_prompt_tokens")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            got = shown(self.early_stopping)
            raise RequestError(f"early_stopping must be true, false or 'never', not {got}", "early_stopping")
        self._check_beams()
        if self.stop and not self.detokenize:
            raise RequestError("stop strings are looked for in the text, which detokenize=False turns off", "stop")

    def _check_beams(self) -> None:
        if self.length_penalty_over not in ("output", "sequence"):
            got = shown(self.length_penalty_over)
            raise RequestError(f"length_penalty_over must be 'output' or 'sequence', not {got}", "length_penalty_over")
        if not self.use_beam_search:
            for name, default in _BEAMS_ONLY.items():
                if getattr(self, name) != default:
                    raise RequestError(f"{name} has a meaning with use_beam_search only", name)
            return
        for name, allowed in _NO_BEAMS.items():
            if getattr(self, name) not in allowed:
                raise RequestError(
                    f"beam search draws nothing: {name} must be {' or '.join(map(str, allowed))} with use_beam_search",
                    name,
                )
        if self.beam_width is not None and self.beam_width < self.n:
            raise RequestError(f"n ({self.n}) exceeds beam_width ({self.beam_width})", "n")
        if self.best_of is not None and self.beam_width not in (None, self.best_of):
            raise RequestError("best_of and beam_width both name the number of beams, and differ", "best_of")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError for a token id outside [0, vocab_size)."""
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"{name} has token id {shown(token)}, outside the vocabulary of {vocab_size}", name
                    )


_LISTS = (
    "stop",
    "stop_token_ids",
    "logit_bias",
    "allowed_token_ids",
    "logprob_token_ids",
    "bad_words",
    "logits_processors",
    "bad_words_token_ids",
)
_SKIP = "skip_reading_prefix_cache"
NOT_SUPPORTED = {
    "extra_args": "custom sampling takes its arguments in the constructor of a logits processor (logits_processors)",
    "skip_clone": "the engine always works on a copy of its own",
    "thinking_token_budget": "there is no reasoning parser that would tell thinking from answering",
    "prompt_logprob_token_ids": "prompt_logprobs gives the best tokens of every position",
    "prompt_logprob_start": "prompt_logprobs gives every position",
    "stream_interval": "a streamed request has an output every step; gather them, or use output_kind FINAL_ONLY",
    "trace_decode_token_ids": "a logits processor can force tokens (logits_processors)",
    "routed_experts_prompt_start": "no model here has routed experts to report",
}
"""Parameters of vLLM that have no meaning here, and why."""
_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "flat_logprobs",
    "use_beam_search",
)


_BEAMS_ONLY = {"beam_width": None, "length_penalty": 1.0, "length_penalty_over": "output", "early_stopping": False}
_NO_BEAMS: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 1.0),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
}


def _processors(values: Any) -> list[LogitsProcessor]:
    processors = sequence("logits_processors", values, "LogitsProcessor objects", MAX_PROCESSORS)
    for value in processors:
        if not isinstance(value, LogitsProcessor):
            raise RequestError(
                f"logits_processors must hold LogitsProcessor objects, not {shown(value)}", "logits_processors"
            )
    return processors


def branch_seed(seed: int, branch: int) -> int:
    """Seed of branch `branch` of a request with `seed`: the request's own for branch 0, hashed for the others.

    A request of one sequence that brings this seed draws the same tokens as the branch.
    """
    if branch == 0:
        return seed
    mixed = hashlib.blake2b(f"{seed}/{branch}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little")
