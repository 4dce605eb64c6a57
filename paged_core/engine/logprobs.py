"""LogprobWriter: from a sampler's arrays to the log-probabilities a user sees, as dicts or flat."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from paged_core.api.flat_logprobs import FlatLogprobs
from paged_core.api.output import Logprob

if TYPE_CHECKING:
    from paged_core.api.batch import TopLogprobs
    from paged_core.api.loader import Tokenizer

    LogprobList = list[dict[int, Logprob]] | FlatLogprobs

MIN_LOGPROB = -9999.0


class LogprobWriter:
    """One request's. `flat`: its lists are FlatLogprobs. Not `ranked`: the tokens were listed by the user, not best
    first, and only the token itself has a rank."""

    def __init__(self, tokenizer: Tokenizer, *, flat: bool, ranked: bool) -> None:
        self._tokenizer = tokenizer
        self._flat = flat
        self._ranked = ranked

    def new_list(self) -> LogprobList:
        """An empty list."""
        return FlatLogprobs() if self._flat else []

    def new_prompt_list(self) -> LogprobList:
        """A list whose first position is without any: nothing predicts a prompt's first token. In a list of dicts it
        reads None."""
        return FlatLogprobs([None]) if self._flat else cast("LogprobList", [None])

    def append(self, target: LogprobList, top: TopLogprobs, i: int, token: int) -> None:
        """Row `i` as vLLM shows it: the token itself, then the best k or the listed ones. Masked ones read -9999."""
        others = top.token_ids[i].tolist()
        values = dict(zip(others, enumerate(top.logprobs[i].tolist(), start=1), strict=True))
        values.pop(token, None)
        ids = [token, *values]
        logprobs = [
            max(value, MIN_LOGPROB) for value in (float(top.chosen[i]), *(value for _, value in values.values()))
        ]
        ranks = [int(top.rank[i]), *(rank if self._ranked else None for rank, _ in values.values())]
        texts = [self._tokenizer.token_text(one) for one in ids]
        if isinstance(target, FlatLogprobs):
            target.append_columns(ids, logprobs, ranks, texts)
        else:
            columns = zip(ids, logprobs, ranks, texts, strict=True)
            target.append({one: Logprob(value, rank, text) for one, value, rank, text in columns})
