"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, NamedTuple

from paged_core.model.token_text import text_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.api.output import Logprob

    Position = Mapping[int, Logprob] | None

_UNRANKED = 1 << 62


class Token(NamedTuple):
    """A token of a text; `shown`: its own text is part of that."""

    id: int
    text: str
    shown: bool = True


class Offsets:
    """Where each token of a text begins, in characters; a token that begins inside a character begins with it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num = 0

    def next(self, token: Token) -> int:
        """Of the next token."""
        begin = self._num
        if token.shown:
            self._num += len(self._decoder.decode(text_bytes(token.text)))
        return begin


def completion_logprobs(
    tokens: Sequence[Token], positions: Sequence[Position], num: int, offsets: Offsets, *, as_ids: bool
) -> dict[str, Any]:
    """The form of completions: four lists, one entry a token. `as_ids`: tokens are named by id."""
    result: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for token, position in zip(tokens, positions, strict=True):
        mine = position[token.id] if position else None
        result["text_offset"].append(offsets.next(token))
        result["token_logprobs"].append(mine.logprob if mine else None)
        result["tokens"].append(f"token_id:{token.id}" if as_ids else token.text)
        best = {_name(one, value, as_ids): value.logprob for one, value in _best(position, num)}
        result["top_logprobs"].append({**best, _name(token.id, mine, as_ids): mine.logprob} if mine else None)
    return result


def chat_logprobs(
    tokens: Sequence[int], positions: Sequence[Position], num: int, *, as_ids: bool = False
) -> list[dict[str, Any]]:
    """The form of chats: an object a token, with the `num` best beside it."""
    result = []
    for token, position in zip(tokens, positions, strict=True):
        assert position is not None
        best = [_entry(one, value, as_ids) for one, value in _best(position, num)]
        result.append({**_entry(token, position[token], as_ids), "top_logprobs": best})
    return result


def prompt_logprobs(positions: Sequence[Position]) -> list[Any]:
    """vLLM's form: null for the first token, then an object of token id -> logprob, rank and text."""
    return [position and {str(one): _ranked(value) for one, value in position.items()} for position in positions]


def _ranked(value: Logprob) -> dict[str, Any]:
    return {"logprob": value.logprob, "rank": value.rank, "decoded_token": value.decoded_token}


def _best(position: Position, num: int) -> list[tuple[int, Logprob]]:
    """The `num` best, best first. Tokens that the caller listed have no rank: all of them are given."""
    ranked = sorted((position or {}).items(), key=lambda item: item[1].rank or _UNRANKED)
    return [(one, value) for one, value in ranked if value.rank is None or value.rank <= num]


def _entry(token: int, value: Logprob, as_ids: bool) -> dict[str, Any]:
    text = value.decoded_token or ""
    return {"token": _name(token, value, as_ids), "logprob": value.logprob, "bytes": list(text_bytes(text))}


def _name(token: int, value: Logprob, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else value.decoded_token or ""
