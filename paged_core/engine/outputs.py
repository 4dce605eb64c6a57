"""Outputs: from tokens to text to RequestOutput.

Rows that someone watches (streamed, stop strings, log-probabilities) are worked on every step; the text of all others
is decoded once, when they end.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from paged_core.api.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from paged_core.engine.detokenize import Detokenizer
from paged_core.engine.stops import StopChecker

if TYPE_CHECKING:
    from paged_core.api.batch import TopLogprobs
    from paged_core.api.loader import Tokenizer
    from paged_core.api.request import Group, Request
    from paged_core.engine.beam_search import Hypothesis


class BranchText:
    """Text and log-probabilities of one branch as it grows."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.text = ""
        self.cumulative_logprob: float | None = None
        self.score: float | None = None
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.token_ids: list[int] = []
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        if params.detokenize:
            self._detokenizer = Detokenizer(tokenizer, request.prompt_token_ids, params.skip_special_tokens)
        self._stops = StopChecker(params.stop_strings, params.include_stop_str_in_output)

    @property
    def num_pushed(self) -> int:
        """Output tokens taken so far."""
        return len(self.token_ids)

    def fork(self) -> BranchText:
        """A branch of its own that has seen what this one has."""
        twin = copy.copy(self)
        twin.token_ids = list(self.token_ids)
        twin.logprobs = None if self.logprobs is None else list(self.logprobs)
        twin._detokenizer = None if self._detokenizer is None else self._detokenizer.fork()
        twin._stops = self._stops.fork()
        return twin

    def push(self, tokens: list[int], *, hide_last: bool = False) -> bool:
        """Take new output tokens; True when a stop string completed. `hide_last`: the last one ended the sequence
        and its text is not shown."""
        for i, token in enumerate(tokens):
            self.token_ids.append(token)
            if self._detokenizer is None or (hide_last and i == len(tokens) - 1):
                continue
            if self._feed(self._detokenizer.push([token])):
                return True
        return False

    def finish(self, reason: str, stop_reason: int | str | None) -> None:
        """Release held-back text and note why it ended. The flushed tail may itself complete a stop string."""
        if self._detokenizer is not None and self.finish_reason is None:
            if self._feed(self._detokenizer.flush()):
                return
            self.text += self._stops.flush()
        if self.finish_reason is None:
            self.finish_reason, self.stop_reason = reason, stop_reason

    def add_logprobs(self, top: TopLogprobs, token: int) -> None:
        """One drawn token's log-probabilities."""
        logprob = float(top.chosen[0])
        self.cumulative_logprob = (self.cumulative_logprob or 0.0) + logprob
        if self.logprobs is not None:
            self.logprobs.append(logprob_entry(top, 0, token, self._tokenizer))

    def snapshot(self, index: int) -> CompletionOutput:
        """What the user sees now."""
        logprobs = None if self.logprobs is None else list(self.logprobs)
        return CompletionOutput(
            index,
            self.text,
            list(self.token_ids),
            self.cumulative_logprob,
            logprobs,
            self.finish_reason,
            self.stop_reason,
            self.score,
        )

    def _feed(self, text: str) -> bool:
        enabled = len(self.token_ids) > self._params.min_tokens
        shown, matched = self._stops.feed(text, enabled)
        self.text += shown
        if matched is not None:
            self.finish_reason, self.stop_reason = "stop", matched
        return matched is not None


class Answer:
    """Everything the user gets for one request."""

    def __init__(self, group: Group, tokenizer: Tokenizer, *, stream: bool) -> None:
        params = group.request.params
        self.group = group
        # Which branches are kept is known at the end only.
        self.stream = stream and not params.ranked and not params.use_beam_search
        self.watched = self.stream or bool(params.stop) or params.logprobs is not None or params.ranked
        self.branches = [BranchText(group.request, tokenizer) for _ in range(params.num_sequences)]
        self.metrics = RequestMetrics(arrival_time=group.arrival)
        self.error: str | None = None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self._tokenizer = tokenizer

    def take_beams(self, hypotheses: list[Hypothesis]) -> None:
        """What a beam search found becomes the answer, best first."""
        self.branches = [self._branch(one) for one in hypotheses]

    def _branch(self, found: Hypothesis) -> BranchText:
        branch = BranchText(self.group.request, self._tokenizer)
        path = found.path
        for link in path:
            branch.add_logprobs(link.top, link.token)
        hide = found.finish_reason == "stop" and not self.group.request.params.include_stop_str_in_output
        branch.push([link.token for link in path], hide_last=hide and not isinstance(found.stop_reason, str))
        branch.finish(found.finish_reason, found.stop_reason)
        branch.cumulative_logprob, branch.score = found.cumulative, found.score
        return branch

    def add_prompt_logprobs(self, first: int, top: TopLogprobs) -> None:
        """Rows for prompt positions `first`, `first` + 1, ...; they arrive in order."""
        assert self.prompt_logprobs is not None
        ids = self.group.request.prompt_token_ids
        for i in range(len(top.chosen)):
            if first + i == len(self.prompt_logprobs):
                self.prompt_logprobs.append(logprob_entry(top, i, ids[first + i], self._tokenizer))

    def output(self, *, finished: bool) -> RequestOutput:
        """The answer as it stands."""
        request = self.group.request
        metrics = self.metrics
        metrics.first_scheduled_time = self.group.first_scheduled
        metrics.num_preemptions = self.group.num_preemptions
        return RequestOutput(
            request_id=request.id,
            prompt=request.prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[branch.snapshot(i) for i, branch in enumerate(self._kept())],
            finished=finished,
            prompt_logprobs=self.prompt_logprobs,
            metrics=metrics,
            num_cached_tokens=metrics.num_cached_tokens,
            error=self.error,
        )

    def _kept(self) -> list[BranchText]:
        params = self.group.request.params
        if not params.ranked:
            return self.branches
        ranking = sorted(self.branches, key=lambda branch: -(branch.cumulative_logprob or 0.0))
        return ranking[: params.n]


def logprob_entry(top: TopLogprobs, i: int, token: int, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """Row `i` as vLLM shows it: the token itself, then the best k, by id. Masked (infinite) values read -9999."""
    entry = {token: _logprob(float(top.chosen[i]), int(top.rank[i]), token, tokenizer)}
    for rank, (other, value) in enumerate(zip(top.token_ids[i], top.logprobs[i], strict=True), start=1):
        if int(other) not in entry:
            entry[int(other)] = _logprob(float(value), rank, int(other), tokenizer)
    return entry


def _logprob(value: float, rank: int, token: int, tokenizer: Tokenizer) -> Logprob:
    return Logprob(max(value, -9999.0), rank, tokenizer.token_text(token))
