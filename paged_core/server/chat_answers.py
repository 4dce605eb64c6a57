"""Answers of /v1/chat/completions: outputs of the engine become messages, whole or as deltas of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.server.answers import Head, Streaming, chunks_of, usage
from paged_core.server.cursor import Cursor, News
from paged_core.server.logprobs import chat_logprobs, prompt_logprobs
from paged_core.server.tools.turn import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paged_core.api.output import CompletionOutput, RequestOutput
    from paged_core.server.answers import Chunks, Outputs
    from paged_core.server.tools.turn import AnswerReader, Piece


@dataclass(frozen=True, slots=True)
class ChatShape:
    """How the answer to a chat request looks."""

    num_logprobs: int | None = None
    show_prompt_logprobs: bool = False
    show_token_ids: bool = False
    tokens_as_ids: bool = False


class ChatAnswer:
    """One request's choices; `new_reader` makes what reads the text of each."""

    def __init__(self, head: Head, shape: ChatShape, new_reader: Callable[[], AnswerReader]) -> None:
        self._head = head
        self._shape = shape
        self._new_reader = new_reader
        self._choices: dict[int, _Choice] = {}

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The response to a request that does not stream."""
        choices = [self._whole_choice(i, branch) for i, branch in enumerate(output.outputs)]
        body = {**self._head.body(choices), "usage": usage([output])}
        if self._shape.show_prompt_logprobs:
            body["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs or [])
        if self._shape.show_token_ids:
            body["prompt_token_ids"] = output.prompt_token_ids
        return body

    def chunks(self, stream: Outputs, wants: Streaming) -> Chunks:
        """The chunks of a stream; with usage as the caller wants it."""
        return chunks_of(self._head, stream, wants, self._all_news)

    def _all_news(self, _: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for i, branch in enumerate(output.outputs):
            yield from self._news(i, branch)

    def _news(self, index: int, branch: CompletionOutput) -> Iterator[dict[str, Any]]:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(self._shape, self._new_reader())
            yield _chunk(index, {"role": "assistant", "content": ""})
        news = choice.cursor.news(branch)
        if news is not None:
            yield from choice.chunks(index, news)

    def _whole_choice(self, index: int, branch: CompletionOutput) -> dict[str, Any]:
        reader = self._new_reader()
        pieces = [*reader.feed(branch.text), *reader.end()]
        texts = [piece.text for piece in pieces if isinstance(piece, Text)]
        calls = _calls(pieces)
        content = "".join(texts) if texts or not calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": index,
            "message": message,
            "logprobs": _logprobs(self._shape, branch.token_ids, branch.logprobs or []),
            "finish_reason": reader.finish_reason(branch.finish_reason or ""),
            "stop_reason": branch.stop_reason,
        }
        return {**choice, "token_ids": branch.token_ids} if self._shape.show_token_ids else choice


class _Choice:
    """One choice of a stream. Log-probabilities and token ids wait for the piece that their tokens become part of."""

    def __init__(self, shape: ChatShape, reader: AnswerReader) -> None:
        self.cursor = Cursor()
        self._shape = shape
        self._reader = reader
        self._tokens: list[int] = []
        self._logprobs: list[Any] = []

    def chunks(self, index: int, news: News) -> Iterator[dict[str, Any]]:
        """A chunk for every new piece, and one that says how it ended."""
        self._tokens += news.token_ids
        self._logprobs += news.logprobs
        pieces = self._reader.feed(news.text)
        if news.finish_reason is not None:
            pieces = [*pieces, *self._reader.end()]
        for piece in pieces:
            yield self._with_tokens(_chunk(index, _delta(piece)))
        if news.finish_reason is not None:
            reason = self._reader.finish_reason(news.finish_reason)
            last = {**_chunk(index, {}), "finish_reason": reason, "stop_reason": news.stop_reason}
            yield self._with_tokens(last)

    def _with_tokens(self, choice: dict[str, Any]) -> dict[str, Any]:
        tokens, logprobs = self._tokens, self._logprobs
        self._tokens, self._logprobs = [], []
        if self._shape.show_token_ids:
            choice["token_ids"] = tokens
        if tokens:
            choice["logprobs"] = _logprobs(self._shape, tokens, logprobs)
        return choice


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _delta(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"content": piece.text}
    function = {"arguments": piece.arguments}
    call: dict[str, Any] = {"index": piece.index, "function": function}
    if piece.name is not None:
        call = {"index": piece.index, "id": piece.id, "type": "function", "function": {"name": piece.name, **function}}
    return {"tool_calls": [call]}


def _calls(pieces: list[Piece]) -> list[dict[str, Any]]:
    """The calls whole, in the order in which they began."""
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if isinstance(piece, Text):
            continue
        if piece.index not in calls:
            function = {"name": piece.name, "arguments": ""}
            calls[piece.index] = {"id": piece.id, "type": "function", "function": function}
        calls[piece.index]["function"]["arguments"] += piece.arguments
    return list(calls.values())


def _logprobs(shape: ChatShape, tokens: list[int], positions: Any) -> dict[str, Any] | None:
    if shape.num_logprobs is None:
        return None
    return {
        "content": chat_logprobs(tokens, positions, shape.num_logprobs, as_ids=shape.tokens_as_ids),
        "refusal": None,
    }
