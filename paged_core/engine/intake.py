"""Intake: from what a caller passes to a validated Request. Everything wrong with a request is found here."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from paged_core.api.params import SamplingParams
from paged_core.api.request import Request
from paged_core.engine.beam_search import BeamSearch
from paged_core.engine.sampling import own_params
from paged_core.errors import RequestError

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer
    from paged_core.engine.config import EngineConfig

Prompt = "str | Sequence[int] | dict[str, Any]"


class Intake:
    """Tokenises and checks. A request that can never run is refused here, with the numbers that forbid it."""

    def __init__(self, tokenizer: Tokenizer, facts: EngineConfig) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self._random = random.Random(facts.seed)

    def request(self, request_id: str, prompt: Any, params: SamplingParams, arrival: float, **routing: Any) -> Request:
        """A Request, or RequestError. `prompt`: text, token ids, or a dict with prompt or prompt_token_ids.

        `routing`: priority, deadline, cache_salt, adapter, as in `Request`.
        """
        text, ids = self._tokens(prompt)
        self._check_params(params)
        params = own_params(params, self._facts)
        ids = self._truncated(ids, params)
        self._check_length(ids, params)
        params.bad_words_token_ids = self._bad_words(params)
        return Request(request_id, tuple(ids), params, arrival, prompt=text, **routing)

    def seed(self, params: SamplingParams) -> int:
        """The request's own seed, or a fresh one from the engine's stream (never from a global generator)."""
        return self._random.getrandbits(64) if params.seed is None else params.seed

    def beam_search(self, request: Request) -> BeamSearch | None:
        """The search of a request that asks for one."""
        if not request.params.use_beam_search:
            return None
        room, asked = self._facts.max_model_len - len(request.prompt_token_ids), request.params.max_tokens
        return BeamSearch(request, self._tokenizer, room if asked is None else min(room, asked))

    def _tokens(self, prompt: Any) -> tuple[str | None, list[int]]:
        if isinstance(prompt, dict):
            known = [key for key in ("prompt", "prompt_token_ids") if prompt.get(key) is not None]
            if len(known) != 1:
                raise RequestError("a prompt dict holds exactly one of 'prompt' and 'prompt_token_ids'", "prompt")
            prompt = prompt[known[0]]
        if isinstance(prompt, str):
            return prompt, self._checked(self._encode(prompt))
        if not isinstance(prompt, (list, tuple)):
            raise RequestError(f"a prompt is text or a list of token ids, not {type(prompt).__name__}", "prompt")
        return None, self._checked(list(prompt))

    def _checked(self, ids: list[Any]) -> list[int]:
        """A tokenizer may know more ids than the model has embeddings for; callers may pass anything."""
        vocab = self._facts.vocab_size
        if ids and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab:
            return ids  # a long prompt is judged in a tenth of the time that the loop takes
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
                raise RequestError(f"token id {token!r} of the prompt is outside the vocabulary of {vocab}", "prompt")
        return ids

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError("the prompt holds half of a surrogate pair, which is not text", "prompt") from error
        return self._tokenizer.encode(text)

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
        most = min(self._facts.max_num_seqs, self._facts.token_budget)
        if params.num_sequences > most:
            raise RequestError(
                f"{params.num_sequences} sequences were asked for; this engine runs at most {most} at once "
                f"(max_num_seqs {self._facts.max_num_seqs}, {self._facts.token_budget} tokens a step)",
                "best_of" if params.ranked else "n",
            )

    def _truncated(self, ids: list[int], params: SamplingParams) -> list[int]:
        """The end of the prompt that truncate_prompt_tokens leaves."""
        num = params.truncate_prompt_tokens
        if num == -1:
            num = max(1, self._facts.max_model_len - (params.max_tokens or 1))
        return ids if num is None else ids[-num:]

    def _check_length(self, ids: list[int], params: SamplingParams) -> None:
        facts, num = self._facts, len(ids)
        if num == 0:
            raise RequestError("the prompt is empty: it has no token, and this model adds none of its own", "prompt")
        if num >= facts.max_model_len:
            raise RequestError(
                f"the prompt has {num} tokens; max_model_len is {facts.max_model_len}, of which one is for the answer",
                "prompt",
            )
        if num + params.min_tokens > facts.max_model_len:
            raise RequestError(
                f"prompt ({num}) plus min_tokens ({params.min_tokens}) exceed max_model_len ({facts.max_model_len})",
                "min_tokens",
            )
        branches = params.num_sequences
        blocks = -(-num // facts.block_size) + (branches - (num % facts.block_size > 0) if branches > 1 else 0)
        if blocks > facts.num_blocks:
            fan_out = f" for {branches} sequences" if branches > 1 else ""
            raise RequestError(
                f"the prompt has {num} tokens and needs {blocks} blocks of {facts.block_size}{fan_out}; "
                f"the pool has {facts.num_blocks} ({facts.kv_tokens} tokens): give it more with --kv-memory",
                "prompt",
            )
        if not facts.chunked_prefill and num > facts.token_budget:
            raise RequestError(
                f"the prompt has {num} tokens, more than one step may take ({facts.token_budget}) while chunked "
                "prefill is off: raise max_num_batched_tokens or switch chunked prefill on",
                "prompt",
            )

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """Each word with and without a leading space, as the word may stand first or follow another."""
        result: list[list[int]] = []
        for word in params.bad_words or []:
            for text in (word, " " + word.lstrip()):
                ids = self._tokenizer.encode(text, add_special_tokens=False)
                if ids and ids not in result:
                    result.append(ids)
        return result
