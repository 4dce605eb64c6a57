"""FlatLogprobs: the log-probabilities of many positions in four flat lists, instead of an object per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from paged_core.api.output import Logprob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class FlatLogprobs(Sequence["dict[int, Logprob]"]):
    """Reads like a list of dicts from token id to `Logprob`, one a position; holds (names are vLLM's):

    token_ids, logprobs, ranks, decoded_tokens   all positions one after the other
    start_indices, end_indices                   position i is [start_indices[i], end_indices[i]) of them

    A position without any (the first of a prompt) is empty. The garbage collector has four lists to look at, however
    many tokens there are.
    """

    __slots__ = ("decoded_tokens", "end_indices", "logprobs", "ranks", "start_indices", "token_ids")

    def __init__(self, positions: Iterable[Mapping[int, Logprob] | None] = ()) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        self.decoded_tokens: list[str | None] = []
        for position in positions:
            self.append(position)

    def append(self, position: Mapping[int, Logprob] | None) -> None:
        """One more position; None is an empty one."""
        self.append_columns(
            list(position or ()),
            [one.logprob for one in (position or {}).values()],
            [one.rank for one in (position or {}).values()],
            [one.decoded_token for one in (position or {}).values()],
        )

    def append_columns(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        ranks: Sequence[int | None],
        decoded_tokens: Sequence[str | None],
    ) -> None:
        """One more position, of columns of one length."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.decoded_tokens.extend(decoded_tokens)
        self.end_indices.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> dict[int, Logprob] | FlatLogprobs:
        """The dict of one position, or the positions of a slice."""
        if isinstance(index, slice):
            part = FlatLogprobs()
            for i in range(*index.indices(len(self))):
                where = slice(self.start_indices[i], self.end_indices[i])
                part.append_columns(
                    self.token_ids[where], self.logprobs[where], self.ranks[where], self.decoded_tokens[where]
                )
            return part
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in range(self.start_indices[index], self.end_indices[index])
        }

    def __iter__(self) -> Iterator[dict[int, Logprob]]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatLogprobs):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]
