"""Answers of /v1/completions: outputs of the engine become choices, whole or as chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paged_core.server.cursor import Cursor, News
from paged_core.server.logprobs import Offsets, Token, completion_logprobs, prompt_logprobs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from paged_core.api.loader import Tokenizer
    from paged_core.api.output import RequestOutput

    Outputs = AsyncGenerator[tuple[int, RequestOutput], None]
    Chunks = AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats."""

    id: str
    kind: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, prefix: str, kind: str, model: str) -> Head:
        """With an id of its own."""
        return cls(f"{prefix}-{uuid.uuid4().hex}", kind, model)

    def body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An answer or a chunk of it with these choices."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        }


@dataclass(frozen=True, slots=True)
class Streaming:
    """What the caller of a stream asked for besides the answer."""

    usage: bool = False
    usage_always: bool = False


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt's text at the beginning of an answer, and whether its special tokens are spelt in it."""

    text: str
    special_shown: bool


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """How the answer to a completion request looks. `echoes`: for each prompt, where the answers begin with it.
    `hide_answer`: the prompt alone was asked for (max_tokens 0). `special_shown`: special tokens are in the text."""

    n: int = 1
    num_logprobs: int | None = None
    echoes: list[Echo] | None = None
    special_shown: bool = False
    hide_answer: bool = False
    show_prompt_logprobs: bool = False
    show_token_ids: bool = False
    tokens_as_ids: bool = False


class CompletionAnswer:
    """One request's choices: index of the prompt x n + index of the branch."""

    def __init__(self, head: Head, shape: CompletionShape, tokenizer: Tokenizer) -> None:
        self._head = head
        self._shape = shape
        self._tokenizer = tokenizer
        self._states: defaultdict[int, _State] = defaultdict(_State)

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The response to a request that does not stream."""
        choices = [choice for prompt, output in enumerate(outputs) for choice in self._choices(prompt, output)]
        return {**self._head.body(choices), "usage": usage(outputs, hidden=self._shape.hide_answer)}

    def chunks(self, stream: Outputs, wants: Streaming) -> Chunks:
        """The chunks of a stream; with usage as the caller wants it."""
        return chunks_of(self._head, stream, wants, self._choices, hidden=self._shape.hide_answer)

    def _choices(self, prompt: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """What is new of every branch of one prompt."""
        for i, branch in enumerate(output.outputs):
            index = prompt * self._shape.n + i
            state = self._states[index]
            news = state.cursor.news(branch)
            if news is not None:
                yield {"index": index, **self._choice(prompt, output, news, state)}
                state.begun = True

    def _choice(self, prompt: int, output: RequestOutput, news: News, state: _State) -> dict[str, Any]:
        shape, first = self._shape, not state.begun
        if shape.hide_answer:
            news = News("", [], [], "length")
        echo = shape.echoes[prompt] if shape.echoes is not None and first else None
        choice: dict[str, Any] = {
            "text": news.text if echo is None else echo.text + news.text,
            "logprobs": self._logprobs(output, news, echo, state),
            "finish_reason": news.finish_reason,
            "stop_reason": news.stop_reason,
        }
        if shape.show_prompt_logprobs and first:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs or [])
        if shape.show_token_ids:
            choice["prompt_token_ids"] = output.prompt_token_ids if first else None
            choice["token_ids"] = news.token_ids
        return choice

    def _logprobs(self, output: RequestOutput, news: News, echo: Echo | None, state: _State) -> dict[str, Any] | None:
        num = self._shape.num_logprobs
        if num is None:
            return None
        tokens, positions = self._tokens(news.token_ids, self._shape.special_shown), list(news.logprobs)
        if echo is not None:
            tokens = [*self._tokens(output.prompt_token_ids, echo.special_shown), *tokens]
            positions = [*(output.prompt_logprobs or ()), *positions]
        return completion_logprobs(tokens, positions, num, state.offsets, as_ids=self._shape.tokens_as_ids)

    def _tokens(self, ids: list[int], special_shown: bool) -> list[Token]:
        tokenizer = self._tokenizer
        return [Token(one, tokenizer.token_text(one), special_shown or not tokenizer.is_special(one)) for one in ids]


async def chunks_of(
    head: Head,
    stream: Outputs,
    wants: Streaming,
    choices: Callable[[int, RequestOutput], Iterator[dict[str, Any]]],
    *,
    hidden: bool = False,
) -> Chunks:
    """A chunk for each of the `choices` of every output, and usage as the caller wants it. Closes `stream`."""
    latest: dict[int, RequestOutput] = {}
    async with aclosing(stream):
        async for prompt, output in stream:
            latest[prompt] = output
            for choice in choices(prompt, output):
                now = usage(latest.values(), hidden=hidden) if wants.usage_always else None
                yield {**head.body([choice]), **({"usage": now} if wants.usage or now else {})}
    if wants.usage:
        yield {**head.body([]), "usage": usage(latest.values(), hidden=hidden)}


class _State:
    """How far one choice has come."""

    def __init__(self) -> None:
        self.cursor = Cursor()
        self.offsets = Offsets()
        self.begun = False


def usage(outputs: Iterable[RequestOutput], *, hidden: bool = False) -> dict[str, Any]:
    """Tokens of all prompts and all answers; a prompt counts once however many answers it has."""
    all_of_them = list(outputs)
    prompt = sum(len(output.prompt_token_ids) for output in all_of_them)
    answer = 0 if hidden else sum(len(branch.token_ids) for output in all_of_them for branch in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in all_of_them)},
    }
