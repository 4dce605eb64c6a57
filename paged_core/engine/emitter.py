"""Emitter: decides which branches ended, keeps every request's answer, and hands out RequestOutputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paged_core.engine.endings import Ending, Endings
from paged_core.engine.outputs import Answer
from paged_core.engine.tallies import Tallies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.batch import StepPlan, StepResult, TopLogprobs
    from paged_core.api.loader import Tokenizer
    from paged_core.api.output import RequestOutput
    from paged_core.api.request import Group
    from paged_core.engine.ledger import Ledger


class Emitter:
    """Answers of all unfinished requests. Finishing goes through the ledger, which frees the blocks."""

    def __init__(self, ledger: Ledger, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> None:
        self._ledger = ledger
        self._tokenizer = tokenizer
        self._answers: dict[str, Answer] = {}
        self._endings = Endings(ledger.rows, eos_token_ids)
        self._watched = np.zeros(ledger.rows.capacity, dtype=bool)
        self.tallies = Tallies(ledger.rows.capacity)
        self.num_finished: dict[str, int] = {}
        self.num_generated = 0

    def open(self, group: Group, *, stream: bool) -> None:
        """A request arrived. `stream`: it gets an output every step, else only a final one."""
        self._answers[group.id] = Answer(group, self._tokenizer, stream=stream)

    def emit(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Outputs of a committed step, finished requests included. `now`: seconds on the engine's clock."""
        self._start_rows(plan)
        outputs = self._fail(result.failed, now)
        for row, (first, top) in result.prompt_logprobs.items():
            if (answer := self._answer(row)) is not None:
                answer.add_prompt_logprobs(first, top)
        valid = result.num_tokens >= 1
        if result.failed:  # a group that failed took its other branches with it
            valid &= np.array([self._answer(int(row)) is not None for row in plan.sample_rows])
        if self._ledger.beams:
            valid &= ~self._ledger.beams.drew(plan.sample_rows)
            outputs += self._beams(now)
        news: dict[str, Answer] = {}
        self.tallies.step(plan.num_tokens, plan.sample_rows[valid], now)
        self._note_first_tokens(plan, valid, now)
        self._enter(plan, result, np.nonzero(valid)[0], 0, news)
        for column in range(1, result.tokens.shape[1]):  # what was forced after a draw, until something ends it
            draws = self._going_on(plan.sample_rows, np.nonzero(valid & (result.num_tokens > column))[0])
            self._ledger.append(plan.sample_rows[draws], result.tokens[draws, column])
            self._enter(plan, result, draws, column, news)
            self._ledger.settle(plan.sample_rows[self._going_on(plan.sample_rows, draws)])
        return outputs + [self._output(answer, now) for answer in news.values()]

    def finish(self, group: Group, reason: str, now: float, error: str | None = None) -> RequestOutput:
        """End a whole request now, wherever it is: abort, deadline, outgrown pool, failure."""
        answer = self._answers[group.id]
        answer.error = error
        search = self._ledger.beams.search(group)
        if search is not None:
            answer.take_beams(search.best(group.request.params.n, reason))
            for seq in group.sequences:
                self._endings.end(seq.row)
        for seq in group.live if search is None else ():
            if seq.row >= 0:
                branch = answer.branches[seq.index]
                branch.push(self._ledger.output_ids(seq.row)[branch.num_pushed :].tolist())
                self._endings.end(seq.row)
        for branch in answer.branches:
            if branch.finish_reason is None:
                branch.finish(reason, None)
        self._ledger.finish_group(group, reason)
        return self._output(answer, now)

    @property
    def num_open(self) -> int:
        """Requests whose answer is not finished."""
        return len(self._answers)

    # -- parts of a step ------------------------------------------------------------------------------------------

    def _start_rows(self, plan: StepPlan) -> None:
        for start in plan.started:
            if (answer := self._answer(start.row)) is None:
                continue  # it ended while its first step was in flight
            self._endings.start(start.row, start.params)
            self.tallies.started(start.row)
            self._watched[start.row] = answer.watched
            answer.metrics.num_cached_tokens = self._ledger.num_cached[answer.group.id]

    def _note_first_tokens(self, plan: StepPlan, valid: NDArray[np.bool_], now: float) -> None:
        drawn = plan.sample_rows[valid]
        for row in drawn[plan.sample_positions[valid] == self._ledger.rows.num_prompt[drawn]]:
            answer = self._answer(int(row))
            assert answer is not None
            self._note_first_token(answer, now)

    def _note_first_token(self, answer: Answer, now: float) -> None:
        if answer.metrics.first_token_time is None:
            answer.metrics.first_scheduled_time = answer.group.first_scheduled
            answer.metrics.first_token_time = now
            self.tallies.first_token(answer.metrics)

    def _beams(self, now: float) -> list[RequestOutput]:
        """Outputs of the beam searches that this step brought to their end."""
        outputs = []
        for group in self._ledger.beams.advanced:
            answer, search = self._answers[group.id], self._ledger.beams.search(group)
            assert search is not None
            self.num_generated += len(group.live)
            self._note_first_token(answer, now)
            if search.done:
                outputs.append(self.finish(group, "stop", now))
        return outputs

    def _enter(
        self, plan: StepPlan, result: StepResult, draws: NDArray[np.intp], column: int, news: dict[str, Answer]
    ) -> None:
        """The ledger has token `column` of `draws`: text, endings; answers that have something to say join `news`."""
        drawn, tokens = plan.sample_rows[draws], result.tokens[draws, column]
        num_tokens = plan.sample_positions[draws] + (1 + column)
        self.num_generated += len(drawn)
        endings = {ending.row: ending for ending in self._endings.check(drawn, tokens, num_tokens)}
        for i in np.nonzero(self._watched[drawn])[0]:
            answer = self._watch(int(drawn[i]), int(tokens[i]), result.logprobs.get(int(draws[i])), endings)
            if answer.stream:
                news[answer.group.id] = answer
        for ending in endings.values():
            answer = self._end(ending)
            if not answer.group.live:
                news[answer.group.id] = answer

    def _going_on(self, rows: NDArray[np.int32], draws: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of `draws` whose requests have not ended."""
        return np.array([draw for draw in draws if self._answer(int(rows[draw])) is not None], dtype=np.intp)

    def _watch(self, row: int, token: int, top: TopLogprobs | None, endings: dict[int, Ending]) -> Answer:
        """Turn one watched row's token into text; a stop string that completes becomes the row's ending."""
        answer, seq = self._answer(row), self._ledger.queues.seq_of_row[row]
        assert answer is not None
        assert seq is not None
        branch, params = answer.branches[seq.index], seq.request.params
        if top is not None:
            branch.add_logprobs(top, token)
        ending = endings.get(row)
        hide = ending is not None and ending.finish_reason == "stop" and not params.include_stop_str_in_output
        if branch.push([token], hide_last=hide):
            endings[row] = Ending(row, "stop", None)
        return answer

    def _end(self, ending: Ending) -> Answer:
        row = ending.row
        answer, seq = self._answer(row), self._ledger.queues.seq_of_row[row]
        assert answer is not None
        assert seq is not None
        branch = answer.branches[seq.index]
        late = self._ledger.output_ids(row)[branch.num_pushed :].tolist()
        hide = ending.finish_reason == "stop" and not seq.request.params.include_stop_str_in_output
        branch.push(late, hide_last=hide)
        branch.finish(ending.finish_reason, ending.stop_reason)
        self._endings.end(row)
        assert branch.finish_reason is not None
        self._ledger.finish_sequence(seq, branch.finish_reason)
        return answer

    def _fail(self, failed: dict[int, str], now: float) -> list[RequestOutput]:
        """End the groups of failed rows, each once however many of its branches failed."""
        groups = {group.id: (group, reason) for row, reason in failed.items() if (group := self._group(row))}
        return [self.finish(group, "error", now, error=reason) for group, reason in groups.values()]

    def _output(self, answer: Answer, now: float) -> RequestOutput:
        finished = not answer.group.live
        if finished:
            answer.metrics.finished_time = now
            del self._answers[answer.group.id]
            for branch in answer.branches:
                reason = branch.finish_reason or "error"
                self.num_finished[reason] = self.num_finished.get(reason, 0) + 1
        output = answer.output(finished=finished)
        if finished:
            self.tallies.finished(answer.metrics, (branch.finish_reason for branch in answer.branches))
        return output

    def _group(self, row: int) -> Group | None:
        return self._ledger.queues.group_of_row[row]

    def _answer(self, row: int) -> Answer | None:
        group = self._group(row)
        return None if group is None else self._answers.get(group.id)
