"""BeamSearch: which beams of one request go on, which are finished, and when the search is over.

The rules are those of transformers' `generate(num_beams=...)`, so that beams and scores are equal. Each step ranks all
continuations of all running beams by cumulative log-probability (float32). Among the best `width` of them, those that
end become finished hypotheses; the best `width` of the others run on. Of the finished ones the best `width` by score
are kept. The score is the cumulative log-probability divided by a length to the power of `length_penalty`; the length
counts what `length_penalty_over` says:

    output    generated tokens, the one that ended it included (transformers; the default)
    sequence  prompt and output, an end token not included (vLLM)

The search ends when no beam runs, at the length limit, or once `width` hypotheses are finished and `early_stopping`
    True      says so at once
    False     the best running beam, scored at its present length, is no better than the worst of them
    "never"   nor would it be at the limit, should it lose nothing more on the way (length_penalty above 0)

Nothing here knows of rows, blocks or tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paged_core.api.batch import TopLogprobs
from paged_core.engine.outputs import BranchText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.api.loader import Tokenizer
    from paged_core.api.request import Request

_STOP_SLACK = 8  # more candidates a beam with stop strings, which may end any of them
_MOST_ENDS = 64


class Link(NamedTuple):
    """The last token of a beam, with its log-probability as an output shows it, and what came before."""

    before: Link | None
    token: int
    top: TopLogprobs


class Beam(NamedTuple):
    """One running beam; `text` only when stop strings are looked for."""

    link: Link | None
    cumulative: np.float32
    text: BranchText | None


class Continuation(NamedTuple):
    """Running beam `parent` (its place in the last answer of `advance`; 0 at first) goes on with `token`."""

    parent: int
    token: int


class Hypothesis(NamedTuple):
    """A finished beam."""

    link: Link | None
    cumulative: float
    score: float
    finish_reason: str
    stop_reason: int | str | None

    @property
    def path(self) -> list[Link]:
        """Its tokens, first to last."""
        links = []
        link = self.link
        while link is not None:
            links.append(link)
            link = link.before
        return links[::-1]


class BeamSearch:
    """The beams of one request. `limit`: output tokens at which every beam ends."""

    def __init__(self, request: Request, tokenizer: Tokenizer, limit: int) -> None:
        params = request.params
        self._params = params
        self._num_prompt = len(request.prompt_token_ids)
        self._limit = limit
        self._stop_ids = frozenset(params.stop_token_ids or ())
        self._ends = self._stop_ids | (frozenset() if params.ignore_eos else frozenset(tokenizer.eos_token_ids))
        self._length = 0
        text = BranchText(request, tokenizer) if params.stop else None
        self._running = [Beam(None, np.float32(0), text)]
        self._finished: list[Hypothesis] = []
        self.width = params.num_sequences
        self.done = False

    @property
    def num_candidates(self) -> int:
        """Best tokens wanted of each running beam: enough that `width` beams go on though all end tokens are among
        them."""
        slack = _STOP_SLACK if self._params.stop else 0
        return max(self.width + min(len(self._ends), _MOST_ENDS) + slack, self._params.logprobs or 0)

    def advance(self, candidates: Sequence[TopLogprobs]) -> list[Continuation]:
        """One step: the best tokens of every running beam, in order. Returns the beams that run on, best first."""
        self._length += 1
        cumulative = [beam.cumulative + top.logprobs[0] for beam, top in zip(self._running, candidates, strict=True)]
        parents = np.repeat(np.arange(len(candidates)), [len(scores) for scores in cumulative])
        ranks = np.concatenate([np.arange(len(scores)) for scores in cumulative])
        scores = np.concatenate(cumulative)
        running: list[Beam] = []
        continued: list[Continuation] = []
        for place, i in enumerate(np.argsort(-scores, kind="stable")):
            if len(running) == self.width:
                break
            parent, rank = int(parents[i]), int(ranks[i])
            beam = self._extended(self._running[parent], candidates[parent], rank, scores[i])
            ended = self._ending(beam)
            if ended is None:
                running.append(beam)
                assert beam.link is not None
                continued.append(Continuation(parent, beam.link.token))
            elif place < self.width:
                self._finish(beam, *ended)
        self._running = running
        self.done = self._over()
        return continued

    def best(self, num: int, reason: str) -> list[Hypothesis]:
        """The `num` best hypotheses, fewer when no more beams could be formed, `num` empty ones when there was no step
        yet. Beams that still run in an unfinished search count as ended here, by `reason`."""
        for beam in () if self.done else self._running:
            self._finish(beam, reason, None)
        if self._length == 0:
            return [Hypothesis(None, 0.0, 0.0, reason, None)] * num
        return self._finished[:num]

    def _extended(self, beam: Beam, top: TopLogprobs, rank: int, cumulative: np.float32) -> Beam:
        token, shown = int(top.token_ids[0, rank]), self._params.logprobs or 0
        chosen = TopLogprobs(
            top.logprobs[0, rank : rank + 1],
            np.array([rank + 1], dtype=np.int32),
            top.token_ids[:, :shown],
            top.logprobs[:, :shown],
        )
        return Beam(Link(beam.link, token, chosen), cumulative, None if beam.text is None else beam.text.fork())

    def _ending(self, beam: Beam) -> tuple[str, int | str | None] | None:
        """Finish reason and stop reason, if the beam ends with its last token."""
        assert beam.link is not None
        token = beam.link.token
        if token in self._ends:  # before min_tokens it is no candidate
            return "stop", token if token in self._stop_ids else None
        if beam.text is not None and beam.text.push([token]):
            return "stop", beam.text.stop_reason
        return ("length", None) if self._length >= self._limit else None

    def _finish(self, beam: Beam, reason: str, stop_reason: int | str | None) -> None:
        by_token = reason == "stop" and beam.link is not None and beam.link.token in self._ends
        score = float(beam.cumulative / self._norm(self._length, ended_by_token=by_token))
        hypothesis = Hypothesis(beam.link, float(beam.cumulative), score, reason, stop_reason)
        self._finished.append(hypothesis)
        self._finished.sort(key=lambda one: -one.score)
        del self._finished[self.width :]

    def _norm(self, length: int, *, ended_by_token: bool = False) -> np.float32:
        if self._params.length_penalty_over == "sequence":
            length += self._num_prompt - ended_by_token
        return np.float32(max(length, 1) ** self._params.length_penalty)

    def _over(self) -> bool:
        params = self._params
        if not self._running or self._length >= self._limit:
            return True
        if len(self._finished) < self.width:
            return False
        if params.early_stopping is True:
            return True
        to_the_end = params.early_stopping == "never" and params.length_penalty > 0.0
        best = self._running[0].cumulative / self._norm(self._limit if to_the_end else self._length)
        return not best > np.float32(self._finished[-1].score)
