"""SamplingParams: how the tokens of one request are chosen. Names, meanings and defaults are vLLM's."""

from __future__ import annotations

import copy
import difflib
import hashlib
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from paged_core.api.logits import LogitsProcessor
from paged_core.errors import RequestError

MAX_N = 256
MAX_LOGPROBS = 50
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_BAD_WORDS = 256
MAX_LOGIT_BIAS = 1024
MAX_PROCESSORS = 16
MAX_TOKEN_IDS = 1 << 18
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
    logprobs              None = off, 0 = the sampled token only, k = the k best as well
    prompt_logprobs       the same for every prompt token but the first
    detokenize            False = token ids only, no text; excludes stop strings
    skip_special_tokens   leave control tokens out of the text
    spaces_between_special_tokens   kept for vLLM's sake: the tokenizers used here never add such spaces
    logit_bias            token id -> value in [-100, 100] added to its logit
    allowed_token_ids     only these may be sampled
    bad_words             strings whose token sequences may not be completed
    logits_processors     `LogitsProcessor` objects that change the logits of this request first of all
    use_beam_search, beam_width, length_penalty, early_stopping   beam search: width (n if None), exponent of the length
                          a score is divided by, and whether to stop at enough finished beams (True, False, "never")
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
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logits_processors: list[LogitsProcessor] | None = None
    use_beam_search: bool = False
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False, repr=False)
    """Filled by the engine from `bad_words` and the tokenizer; not for callers."""

    def __post_init__(self) -> None:
        self.stop = _strings("stop", [self.stop] if isinstance(self.stop, str) else self.stop, MAX_STOPS)
        self.bad_words = _strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        self.logits_processors = _processors(self.logits_processors)
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids is empty: nothing could be sampled", "allowed_token_ids")
        if self.logit_bias is not None:
            self.logit_bias = _bias(self.logit_bias)
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
        beams = (self.beam_width or self.n) if self.use_beam_search else 1
        return max(self.n, self.best_of or 1, beams)

    @property
    def ranked(self) -> bool:
        """Whether more sequences are drawn than returned: the best n by cumulative log-probability are kept."""
        return self.best_of is not None and self.best_of > self.n

    def for_sampler(self) -> SamplingParams:
        """These parameters as the sampler needs them: ranking wants the log-probability of every drawn token."""
        if not self.ranked or self.logprobs is not None:
            return self
        params = copy.copy(self)
        params.logprobs = 0
        return params

    @property
    def stop_strings(self) -> list[str]:
        """`stop`, always as a list."""
        return list(self.stop or [])

    def _check_numbers(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _optional_integer("best_of", self.best_of, self.n, MAX_N)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _integer("top_k", self.top_k, -1, 2**63 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _optional_integer("seed", self.seed, -(2**63), 2**64 - 1)
        _optional_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})", "min_tokens")
        _optional_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _optional_integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        _optional_integer("beam_width", self.beam_width, 1, MAX_N)
        _number("length_penalty", self.length_penalty, -10.0, 10.0)

    def _check_flags(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {_shown(getattr(self, name))}", name)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            got = _shown(self.early_stopping)
            raise RequestError(f"early_stopping must be true, false or 'never', not {got}", "early_stopping")
        if self.stop and not self.detokenize:
            raise RequestError("stop strings are looked for in the text, which detokenize=False turns off", "stop")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError for a token id outside [0, vocab_size)."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"{name} has token id {_shown(token)}, outside the vocabulary of {vocab_size}", name
                    )


_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "use_beam_search",
)


def _shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever a stranger sent."""
    if _is_integer(value) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(name: str, value: Any, low: float, high: float, above: bool = False) -> None:
    if not _is_integer(value) and (not isinstance(value, float) or not math.isfinite(value)):
        raise RequestError(f"{name} must be a finite number, not {_shown(value)}", name)
    if not low <= value <= high or (above and value == low):
        interval = f"{'(' if above else '['}{low:g}, {high:g}]"
        raise RequestError(f"{name} must lie in {interval}, got {_shown(value)}", name)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if not _is_integer(value):
        raise RequestError(f"{name} must be an integer, not {_shown(value)}", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must lie in [{low}, {high}], got {_shown(value)}", name)


def _optional_integer(name: str, value: Any, low: int, high: int) -> None:
    if value is not None:
        _integer(name, value, low, high)


def _sequence(name: str, values: Any, what: str, limit: int) -> list[Any]:
    """A list of its own, its length checked before anything is copied."""
    if values is None:
        return []
    if not isinstance(values, (list, tuple)):
        raise RequestError(f"{name} has the wrong type: a list of {what} is needed, not {_shown(values)}", name)
    if len(values) > limit:
        raise RequestError(f"{name} holds {len(values)} {what}; at most {limit} are allowed", name)
    return list(values)


def _strings(name: str, values: Any, limit: int) -> list[str]:
    strings = _sequence(name, values, "strings", limit)
    for value in strings:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_CHARS:
            raise RequestError(
                f"{name} must hold strings of 1 to {MAX_STOP_CHARS} characters, not {_shown(value)}", name
            )
    return strings


def _token_ids(name: str, values: Any) -> list[int]:
    ids = _sequence(name, values, "token ids", MAX_TOKEN_IDS)
    for value in ids:
        if not _is_integer(value) or value < 0:
            raise RequestError(f"{name} must hold token ids (integers >= 0), not {_shown(value)}", name)
    return ids


def _processors(values: Any) -> list[LogitsProcessor]:
    processors = _sequence("logits_processors", values, "LogitsProcessor objects", MAX_PROCESSORS)
    for value in processors:
        if not isinstance(value, LogitsProcessor):
            raise RequestError(
                f"logits_processors must hold LogitsProcessor objects, not {_shown(value)}", "logits_processors"
            )
    return processors


def _bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, not {_shown(bias)}", "logit_bias")
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are allowed", "logit_bias")
    result: dict[int, float] = {}
    for key, value in bias.items():
        # JSON has only text as keys: "12" is token 12, but neither "012" nor "1.0" nor " 12" is a token.
        token = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        if not _is_integer(token) or token < 0 or (isinstance(key, str) and str(token) != key):
            raise RequestError(f"logit_bias has the key {_shown(key)}, which is not a token id", "logit_bias")
        _number("logit_bias", value, -100.0, 100.0)
        result[token] = float(value)
    return result


def branch_seed(seed: int, branch: int) -> int:
    """Seed of branch `branch` of a request with `seed`: the request's own for branch 0, hashed for the others.

    A request of one sequence that brings this seed draws the same tokens as the branch.
    """
    if branch == 0:
        return seed
    mixed = hashlib.blake2b(f"{seed}/{branch}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little")
