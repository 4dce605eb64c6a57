"""The engine: expire -> schedule -> apply -> submit -> collect -> commit -> emit."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from paged_core.api.params import SamplingParams
from paged_core.engine.accounts import Accounts
from paged_core.engine.compiling import Arrival, Compiling
from paged_core.engine.emitter import Emitter
from paged_core.engine.intake import Intake
from paged_core.engine.metrics import EngineStats
from paged_core.engine.survey import Focus, PoolSurvey, survey
from paged_core.errors import EngineDeadError, PagedError, PluginContractError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paged_core.api.allocator import BlockStats
    from paged_core.api.batch import StepPlan, StepResult
    from paged_core.api.clock import Clock
    from paged_core.api.executor import Executor, Ticket
    from paged_core.api.loader import Tokenizer
    from paged_core.api.output import RequestOutput
    from paged_core.api.scheduler import Scheduler
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.ledger import Ledger
    from paged_core.engine.tallies import TallySheet
    from paged_core.engine.view import LedgerView
    from paged_core.tracing import Trace

    StepWatcher = Callable[[StepPlan, StepResult, Ledger, BlockStats], None]

log = logging.getLogger("paged_core.engine")

_MOST_IN_FLIGHT = 2  # a plan names draws of the step before it, of none earlier
_IDLE_PAUSE_S = 0.001
_IDLE_LIMIT_S = 60.0


class Engine:
    """Runs requests step by step. Not thread-safe: one thread owns it (`AsyncLLM` gives it one)."""

    def __init__(
        self,
        facts: EngineConfig,
        tokenizer: Tokenizer,
        policy: tuple[Ledger, Scheduler],
        executor: Executor,
        clock: Clock,
    ) -> None:
        self.facts = facts
        self.tokenizer = tokenizer
        self._ledger, self._scheduler = policy
        self._executor = executor
        self._tickets: deque[Ticket] = deque()  # steps in flight, oldest first
        self._clock = clock
        self._intake = Intake(tokenizer, facts)
        self._compiling = Compiling(tokenizer, facts)
        self._emitter = Emitter(self._ledger, tokenizer, tokenizer.eos_token_ids)
        self._deadlines: dict[str, float] = {}
        self._accounts = Accounts()
        self._idle_since: float | None = None
        self._dead: BaseException | None = None
        self._watcher: StepWatcher | None = None

    # -- requests -------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        **routing: Any,
    ) -> None:
        """Queue one request. RequestError when it is invalid or can never run; others are not touched.

        `prompt`: text, token ids, or a dict with `prompt` or `prompt_token_ids`. `stream`: an output every step instead
        of one at the end. `routing`: priority, deadline (seconds on the engine's clock), cache_salt, adapter.
        """
        self._check_alive()
        if request_id in self._ledger.queues.by_id or request_id in self._compiling:
            raise RequestError(f"request id {request_id!r} is already in use", "request_id")
        params = SamplingParams() if params is None else params
        request = self._intake.request(request_id, prompt, params, self._clock.now(), **routing)
        if (reason := self._ledger.allocator.refuses(request)) is not None:
            raise RequestError(reason)
        self._executor.check(request.params)
        arrival = self._compiling.hold(Arrival(request, self._intake.seed(params), stream))
        if arrival is not None:
            self._queue(arrival)
        if request.deadline is not None:
            self._deadlines[request_id] = request.deadline

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests wherever they are and return their last outputs. Unknown and finished ids are left alone."""
        return [output for request_id in list(request_ids) if (output := self._finish(request_id, "abort"))]

    @property
    def has_unfinished(self) -> bool:
        """Whether any request still waits (for its turn or its grammar), runs or is preempted, or any step is in
        flight: blocks of requests that have ended may wait for its end."""
        return bool(self._ledger.queues.by_id) or len(self._compiling) > 0 or bool(self._tickets)

    @property
    def unfinished_ids(self) -> list[str]:
        """Ids of all unfinished requests."""
        return [*self._ledger.queues.by_id, *self._compiling.ids]

    @property
    def now(self) -> float:
        """Seconds on the engine's clock, in which deadlines are given."""
        return self._clock.now()

    @property
    def dead(self) -> bool:
        """Whether the engine failed or was closed; it then refuses work."""
        return self._dead is not None

    # -- the step -------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Run one step; returns outputs that are new. Does nothing when no request is unfinished.

        With an executor that takes two steps at a time, this begins a step and collects the one before.
        """
        self._check_alive()
        try:
            return self._step()
        except Exception as error:
            self._dead = error
            running = ", ".join(group.id for group in self._ledger.queues.running[:8]) or "none"
            chosen = ", ".join(f"{kind}={name}" for kind, name in self.facts.plugins.items())
            error.add_note(f"engine step {self._ledger.step}; running requests: {running}; plugins: {chosen}")
            raise

    def _step(self) -> list[RequestOutput]:
        outputs = self._expire() + self._compiled()
        most = min(self._executor.max_in_flight, _MOST_IN_FLIGHT)
        while self._tickets and (len(self._tickets) == most or not self._ledger.may_lead):
            outputs += self._collect()
        if not self._ledger.queues.by_id:
            return self._drained(outputs)
        view = self._ledger.view(self._clock.now())
        decision = self._scheduler.decide(view)
        if decision.empty or not self._ledger.flight.may_follow(decision):
            return outputs + (self._collect() if self._tickets else self._stalled(view))
        plan = self._ledger.apply(decision, view)
        self._tickets.append(self._executor.submit(plan))
        self._ledger.advance(plan)
        self._accounts.busy_s += self._clock.now() - view.now
        if len(self._tickets) < most:
            return outputs
        return outputs + self._collect()

    def _collect(self) -> list[RequestOutput]:
        """Collect, commit and emit the oldest step in flight."""
        begin = self._clock.now()
        plan, result = self._ledger.flight.plans[0], self._executor.collect(self._tickets[0])
        self._tickets.popleft()  # not before: whoever interrupts the wait finds the step still in flight
        self._clock.advance(result.elapsed_s)
        self._ledger.commit(plan, result)
        self._account(plan, result)
        outputs = self._done(self._emitter.emit(plan, result, self._clock.now()))
        self._accounts.busy_s += self._clock.now() - begin
        return outputs

    def _drained(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """Nobody is there: end what is in flight, or wait for a grammar."""
        if self._tickets:
            return outputs + self._collect()
        if not outputs:
            self._compiling.wait()
        return outputs

    def _expire(self) -> list[RequestOutput]:
        if not self._deadlines:
            return []
        now = self._clock.now()
        late = [request_id for request_id, deadline in self._deadlines.items() if deadline <= now]
        return [output for request_id in late if (output := self._finish(request_id, "abort", "its deadline passed"))]

    def _compiled(self) -> list[RequestOutput]:
        """Queue the requests whose grammars are there; end those whose grammars failed."""
        outputs = []
        for arrival, error in self._compiling.ready():
            self._queue(arrival)
            if error and (output := self._finish(arrival.request.id, "error", error)):
                outputs.append(output)
        return outputs

    def _queue(self, arrival: Arrival) -> None:
        request = arrival.request
        group = self._ledger.add(request, arrival.seed, self._intake.beam_search(request))
        self._emitter.open(group, stream=arrival.stream)

    def _stalled(self, view: LedgerView) -> list[RequestOutput]:
        """Nothing was scheduled: end a group that outgrew the pool, or wait for a scheduler that lets time pass."""
        group = self._ledger.outgrown(view)
        if group is not None:
            need, pool = group.num_tokens, self.facts.kv_tokens
            message = f"the sequence needs room for {need} tokens and the whole KV pool holds {pool}: ended early"
            log.info("request %s: %s", group.id, message)
            return self._done([self._emitter.finish(group, "length", view.now, message)])
        if self._idle_since is None:
            self._idle_since = view.now
        elif view.now - self._idle_since > _IDLE_LIMIT_S:
            raise PluginContractError(
                f"the scheduler broke the progress law: nothing ran for {_IDLE_LIMIT_S:.0f} s while "
                f"{len(self._ledger.queues.by_id)} requests are unfinished"
            )
        self._clock.sleep_until(view.now + _IDLE_PAUSE_S)
        return []

    def _account(self, plan: StepPlan, result: StepResult) -> None:
        self._idle_since = None
        blocks = self._ledger.allocator.stats()
        self._accounts.step(plan.num_tokens, blocks)
        if self._watcher is not None:
            self._watcher(plan, result, self._ledger, blocks)
        if self.facts.audit:
            self._ledger.allocator.check()

    def _finish(self, request_id: str, reason: str, error: str | None = None) -> RequestOutput | None:
        if (held := self._compiling.drop(request_id)) is not None:
            self._queue(held)  # to leave by the same door as all others
        group = self._ledger.queues.by_id.get(request_id)
        if group is None:
            return None
        return self._done([self._emitter.finish(group, reason, self._clock.now(), error)])[0]

    def _done(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        for group in self._ledger.take_ended():
            self._scheduler.forget(group)
        for output in outputs:
            if output.finished:
                self._deadlines.pop(output.request_id, None)
                assert output.metrics is not None
                self._accounts.finished(output.metrics)
        return outputs

    # -- the rest -------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """The engine's inside now."""
        queues, accounts = self._ledger.queues, self._accounts
        pool = accounts.pool(self.facts.block_size)
        return EngineStats(
            num_running=len(queues.running) + len(queues.leaving),
            num_waiting=len(queues.waiting) + len(self._compiling),
            num_preempted=len(queues.preempted),
            num_steps=self._ledger.step,
            num_generated=self._emitter.num_generated,
            num_computed=accounts.num_computed,
            blocks=self._ledger.allocator.stats(),
            peak_blocks=pool.peak_blocks,
            preemptions=dict(self._ledger.num_preemptions),
            finished=dict(self._emitter.num_finished),
            num_prompt=accounts.num_prompt,
            busy_s=accounts.busy_s,
            pool=pool,
            ttft=accounts.ttft(),
            tpot=accounts.tpot(),
            preempted_tokens=dict(self._ledger.residence.preempted_tokens),
            preemption_s=dict(self._ledger.residence.preemption_s),
        )

    def tallies(self) -> TallySheet:
        """Histograms of times and lengths since the engine started."""
        return self._emitter.tallies.sheet()

    def survey(self, focus: Focus = Focus()) -> PoolSurvey:  # noqa: B008 - a tuple
        """The pool block by block and who is in which queue, now."""
        return survey(self._ledger, self._clock.now(), focus)

    def look(self) -> None:
        """While nothing runs: find out whether the executor's processes are still there. Raises what a step would."""
        self._check_alive()
        try:
            self._executor.check_health()
        except Exception as error:
            self._dead = error
            raise

    def watch(self, trace: Trace) -> None:
        """Time the phases of every step from now on."""
        trace.watch(self, {"_step": "step"})
        trace.watch(self._scheduler, {"decide": "schedule"})
        trace.watch(self._ledger, {"view": "view", "apply": "apply", "advance": "advance", "commit": "commit"})
        trace.watch(self._executor, {"submit": "submit", "collect": "collect"})
        trace.watch(self._emitter, {"emit": "emit and detokenise"})

    def observe(self, watcher: StepWatcher) -> None:
        """Call `watcher` with every step from now on: committed, and nobody who ended with it removed yet."""
        self._watcher = watcher

    def check(self) -> None:
        """Assert the allocator's laws, and that an idle engine holds nothing. Raises PluginContractError."""
        self._ledger.allocator.check()
        stats = self._ledger.allocator.stats()
        if not self.has_unfinished and (stats.free != stats.total or self._emitter.num_open or self._deadlines):
            raise PluginContractError(f"law 8: the engine is idle and {stats.used} blocks are still held")

    def close(self) -> None:
        """Release the executor. Idempotent; a closed engine refuses work."""
        if not isinstance(self._dead, _ClosedError):
            self._dead = _ClosedError("the engine was closed")
            self._compiling.close()
            self._executor.close()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(f"the engine has stopped: {self._dead}") from self._dead


class _ClosedError(PagedError):
    """Marks an engine that was closed on purpose."""
