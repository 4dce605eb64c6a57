"""Broken executors, each exec_local with one defect. `test_executor_mutants.py` names the test that catches it."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.api.executor import Executor, ExecutorNeed, KVCapacity, Ticket
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.errors import EngineDeadError

if TYPE_CHECKING:
    from paged_core.api.batch import StepPlan, StepResult


class Wrapped(Executor):
    """exec_local, passed on faithfully; a mutant overrides one method."""

    parallel = False  # whether it declares that ranks share the model

    def __init__(self, inner: Executor, need: ExecutorNeed, plugins: PluginRegistry) -> None:
        self.inner = inner
        self.need = need
        self.plugins = plugins

    def capacity(self) -> KVCapacity:
        return self.inner.capacity()

    def start(self, num_blocks: int, num_host_blocks: int, tables: Any) -> None:
        self.inner.start(num_blocks, num_host_blocks, tables)

    def submit(self, plan: StepPlan) -> Ticket:
        return self.inner.submit(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        return self.inner.collect(ticket)

    def processes(self) -> tuple[int, ...]:
        return self.inner.processes()

    def close(self) -> None:
        self.inner.close()

    def move(self, plan: StepPlan, *names: str) -> None:
        """Run some of a plan's moves in a step of their own."""
        moves = {name: getattr(plan, name) if name in names else [] for name in ("swap_out", "swap_in", "copies")}
        empty, none = plan.token_ids[:0], plan.query_start[:1]
        work = {"token_ids": empty, "positions": empty, "query_start": none, "rows": empty, "seq_lens": empty}
        draws = {"sample_index": empty, "sample_rows": empty, "sample_positions": empty, "num_candidates": None}
        lists: dict[str, Any] = {"started": [], "ended": [], "prompt_rows": []}
        self.inner.collect(self.inner.submit(replace(plan, **work, **draws, **lists, **moves)))


class CopiesAfterWrites(Wrapped):
    """Copies blocks when the step's tokens are already written."""

    def submit(self, plan: StepPlan) -> Ticket:
        ticket = self.inner.submit(replace(plan, copies=[]))
        self.move(plan, "copies")
        return ticket


class MovesNeedTokens(Wrapped):
    """Ignores the moves of a step that computes nothing."""

    def submit(self, plan: StepPlan) -> Ticket:
        if not plan.num_tokens:
            plan = replace(plan, swap_out=[], swap_in=[], copies=[])
        return self.inner.submit(plan)


class SwapInsFirst(Wrapped):
    """Brings blocks in before others have left."""

    def submit(self, plan: StepPlan) -> Ticket:
        self.move(plan, "swap_in")
        return self.inner.submit(replace(plan, swap_in=[]))


class CopiesBeforeSwapIns(Wrapped):
    """Copies a block before it has come back."""

    def submit(self, plan: StepPlan) -> Ticket:
        self.move(plan, "swap_out", "copies")
        return self.inner.submit(replace(plan, swap_out=[], copies=[]))


class ChangesThePlan(Wrapped):
    """Uses the plan's arrays as scratch space."""

    def submit(self, plan: StepPlan) -> Ticket:
        ticket = self.inner.submit(plan)
        plan.positions[:] += 1
        return ticket


class ClosesOnce(Wrapped):
    """Falls over when it is closed again."""

    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True
        self.inner.close()


class DiesConfused(Wrapped):
    """A step after close trips over what is no longer there."""

    def submit(self, plan: StepPlan) -> Ticket:
        try:
            return self.inner.submit(plan)
        except EngineDeadError:
            raise AttributeError("'NoneType' object has no attribute 'run'") from None


class NanFailsTheBatch(Wrapped):
    """One row of NaN takes all the others along."""

    def collect(self, ticket: Ticket) -> StepResult:
        result = self.inner.collect(ticket)
        if result.failed:
            reason = next(iter(result.failed.values()))
            result.failed = dict.fromkeys(ticket.plan.sample_rows.tolist(), reason)
            result.num_tokens[:] = 0
        return result


class CapacityOfOneLayer(Wrapped):
    """Forgets that a block has a place in every layer."""

    def capacity(self) -> KVCapacity:
        honest = self.inner.capacity()
        return replace(honest, num_blocks=honest.num_blocks * self.need.spec.num_layers)


class CapacityLoadsTheModel(Wrapped):
    """Loads the weights to find out how much memory is left."""

    def capacity(self) -> KVCapacity:
        from paged_core.api.loader import LoaderNeed

        loader = self.plugins.create("loader", self.need.loader, LoaderNeed(self.need.model))
        list(loader.weights())
        return self.inner.capacity()


class TicketsMixedUp(Wrapped):
    """Answers with the step before."""

    def collect(self, ticket: Ticket) -> StepResult:
        result = self.inner.collect(ticket)
        return replace(result, step=result.step - 1)


class PromptRowsShifted(Wrapped):
    """Numbers prompt log-probabilities from the token that predicts, not from the predicted one."""

    def collect(self, ticket: Ticket) -> StepResult:
        result = self.inner.collect(ticket)
        result.prompt_logprobs = {row: (first - 1, top) for row, (first, top) in result.prompt_logprobs.items()}
        return result


class EndedRowsLinger(Wrapped):
    """Keeps the parameters of a row that has ended and never takes new ones."""

    known: frozenset[int] = frozenset()

    def submit(self, plan: StepPlan) -> Ticket:
        fresh = [start for start in plan.started if start.row not in self.known]
        self.known |= {start.row for start in fresh}
        return self.inner.submit(replace(plan, started=fresh, ended=[]))


class LosesItsWorker(Wrapped):
    """Has a worker process and trips over the pipe when that is gone."""

    worker: Any = None

    def start(self, num_blocks: int, num_host_blocks: int, tables: Any) -> None:
        self.worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
        self.worker.start()
        self.inner.start(num_blocks, num_host_blocks, tables)

    def submit(self, plan: StepPlan) -> Ticket:
        if not self.worker.is_alive():
            raise BrokenPipeError(32, "Broken pipe")
        return self.inner.submit(plan)

    def processes(self) -> tuple[int, ...]:
        return (self.worker.pid,) if self.worker is not None else ()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.join()
            self.worker = None
        self.inner.close()


class LeavesItsWorker(LosesItsWorker):
    """Forgets that a process goes on when nobody speaks of it any more."""

    def close(self) -> None:
        self.worker = None
        self.inner.close()


class KeepsAllHeads(Wrapped):
    """Says that it has ranks, each of which keeps every KV head."""

    parallel = True

    def capacity(self) -> KVCapacity:
        honest, ranks = self.inner.capacity(), self.need.world_size
        return KVCapacity(honest.num_blocks // ranks, honest.num_host_blocks, honest.block_bytes * ranks, ranks)


class TakesAnySize(Wrapped):
    """Finds out only in the middle of a step that heads do not divide evenly."""

    parallel = True


class MutantProvider(Provider[ExecutorNeed, Executor]):
    """Offers one mutant."""

    kind = "executor"
    api = 1
    priority = -1

    def __init__(self, name: str, mutant: type[Wrapped]) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        self.capabilities = frozenset({"tensor_parallel"} if mutant.parallel else ())  # type: ignore[misc]
        self._mutant = mutant

    def probe(self, need: ExecutorNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: ExecutorNeed, settings: PluginSettings, plugins: PluginRegistry) -> Executor:
        return self._mutant(plugins.create("executor", "exec_local", replace(need, world_size=1)), need, plugins)


MUTANTS = {
    "exec_late_copies": CopiesAfterWrites,
    "exec_moves_need_tokens": MovesNeedTokens,
    "exec_swap_in_first": SwapInsFirst,
    "exec_early_copies": CopiesBeforeSwapIns,
    "exec_changes_plan": ChangesThePlan,
    "exec_closes_once": ClosesOnce,
    "exec_dies_confused": DiesConfused,
    "exec_nan_kills": NanFailsTheBatch,
    "exec_one_layer": CapacityOfOneLayer,
    "exec_loads_early": CapacityLoadsTheModel,
    "exec_mixed_tickets": TicketsMixedUp,
    "exec_prompt_shifted": PromptRowsShifted,
    "exec_rows_linger": EndedRowsLinger,
    "exec_broken_pipe": LosesItsWorker,
    "exec_leaves_worker": LeavesItsWorker,
    "exec_all_heads": KeepsAllHeads,
    "exec_any_size": TakesAnySize,
}


@hookimpl
def paged_executor() -> list[MutantProvider]:
    return [MutantProvider(name, mutant) for name, mutant in MUTANTS.items()]
