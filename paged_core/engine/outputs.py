"""Outputs: from tokens to text to RequestOutput.

Rows that someone watches (streamed, stop strings, log-probabilities) are worked on every step; the text of all others
is decoded once, when they end.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from paged_core.api.output import CompletionOutput, RequestMetrics, RequestOutput
from paged_core.api.output_kind import RequestOutputKind
from paged_core.engine.detokenize import Detokenizer
from paged_core.engine.logprobs import LogprobWriter
from paged_core.engine.stops import StopChecker

if TYPE_CHECKING:
    from paged_core.api.batch import TopLogprobs
    from paged_core.api.loader import Tokenizer
    from paged_core.api.request import Group, Request
    from paged_core.engine.beam_search import Hypothesis
    from paged_core.engine.logprobs import LogprobList


class BranchText:
    """Text and log-probabilities of one branch as it grows."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        writer = LogprobWriter(tokenizer, flat=params.flat_logprobs, ranked=params.logprob_token_ids is None)
        self.text = ""
        self.cumulative_logprob: float | None = None
        self.score: float | None = None
        self.logprobs: LogprobList | None = None if params.logprobs is None else writer.new_list()
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.token_ids: list[int] = []
        self._params = params
        self._writer = writer
        self._shown: tuple[int, int, int, str | None] = (
            0,
            0,
            0,
            None,
        )  # what deltas gave out of text, tokens, logprobs
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
        twin.logprobs = None if self.logprobs is None else self.logprobs[:]
        twin._detokenizer = None if self._detokenizer is None else self._detokenizer.fork()
        twin._stops = self._stops.fork()
        return twin

    def push(self, tokens: list[int], *, hide_last: bool = False) -> bool:
        """Take new output tokens; True when a stop string completed. `hide_last`: the last one ended the sequence
        and its text is not shown."""
        if self._detokenizer is not None and not self._params.stop_strings:
            self.token_ids.extend(tokens)  # many at once are read at once
            return self._feed(self._detokenizer.push(tokens[:-1] if hide_last else tokens))
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
            self._writer.append(self.logprobs, top, 0, token)

    def snapshot(self, index: int) -> CompletionOutput:
        """What the user sees now."""
        return self._output(index, 0, 0, 0)

    def delta(self, index: int) -> CompletionOutput | None:
        """What is new since the delta before; None when nothing is."""
        shown = (len(self.text), len(self.token_ids), len(self.logprobs or ()), self.finish_reason)
        if shown == self._shown:
            return None
        before, self._shown = self._shown, shown
        return self._output(index, *before[:3])

    def _output(self, index: int, text: int, tokens: int, logprobs: int) -> CompletionOutput:
        """From these characters, tokens and log-probabilities on."""
        return CompletionOutput(
            index,
            self.text[text:],
            self.token_ids[tokens:],
            self.cumulative_logprob,
            None if self.logprobs is None else self.logprobs[logprobs:],
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
        whole = params.ranked or params.use_beam_search or params.output_kind is RequestOutputKind.FINAL_ONLY
        self.stream = stream and not whole
        self.watched = self.stream or bool(params.stop) or params.logprobs is not None or params.ranked
        self._prompt_writer = LogprobWriter(tokenizer, flat=params.flat_logprobs, ranked=True)
        self.branches = [BranchText(group.request, tokenizer) for _ in range(params.num_sequences)]
        self.metrics = RequestMetrics(group.arrival, num_prompt_tokens=len(group.request.prompt_token_ids))
        self.error: str | None = None
        self.prompt_logprobs: LogprobList | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = self._prompt_writer.new_prompt_list()
        self._prompt_shown = False
        self._prompt_ids = list(group.request.prompt_token_ids)  # one list for all outputs: a stream has one every step
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
                self._prompt_writer.append(self.prompt_logprobs, top, i, ids[first + i])

    def output(self, *, finished: bool) -> RequestOutput:
        """The answer as it stands."""
        request = self.group.request
        metrics = self.metrics
        metrics.first_scheduled_time = self.group.first_scheduled
        metrics.num_preemptions = self.group.num_preemptions
        lengths = [branch.num_pushed for branch in self.branches]
        metrics.num_generation_tokens, metrics.longest_output = sum(lengths), max(lengths, default=0)
        return RequestOutput(
            request_id=request.id,
            prompt=request.prompt,
            prompt_token_ids=self._prompt_ids,
            outputs=self._completions(),
            finished=finished,
            prompt_logprobs=self._prompt_part(),
            metrics=metrics,
            num_cached_tokens=metrics.num_cached_tokens,
            error=self.error,
        )

    def _completions(self) -> list[CompletionOutput]:
        if self.group.request.params.output_kind is not RequestOutputKind.DELTA:
            return [branch.snapshot(i) for i, branch in enumerate(self._kept())]
        deltas = (branch.delta(i) for i, branch in enumerate(self._kept()))
        return [delta for delta in deltas if delta is not None]

    def _prompt_part(self) -> LogprobList | None:
        """The prompt's log-probabilities; with DELTA once."""
        if self.group.request.params.output_kind is RequestOutputKind.DELTA and self._prompt_shown:
            return None
        self._prompt_shown = True
        return self.prompt_logprobs

    def _kept(self) -> list[BranchText]:
        params = self.group.request.params
        if not params.ranked:
            return self.branches
        ranking = sorted(self.branches, key=lambda branch: -(branch.cumulative_logprob or 0.0))
        return ranking[: params.n]
