"""The ledger's audit of a decision, before any of it is applied. Names the law that was broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.request import GroupState
from paged_core.errors import PluginContractError

if TYPE_CHECKING:
    from paged_core.api.request import Group
    from paged_core.api.scheduler import Decision
    from paged_core.engine.view import LedgerView


def audit(decision: Decision, view: LedgerView) -> None:
    """Raise PluginContractError unless `decision` obeys laws 6, 7 and 11 and the gang rule against `view`."""
    _check_queues(decision)
    _check_budget(decision, view)
    _check_gaps(decision, view)


def _broken(law: str, what: str) -> PluginContractError:
    return PluginContractError(f"the scheduler broke {law}: {what}")


def _check_queues(decision: Decision) -> None:
    victims = _distinct(decision.preempt, "preempt")
    resumed = _distinct(decision.resume, "resume")
    runs = _distinct([run.group for run in decision.run], "run")
    for group in decision.preempt:
        if group.state is not GroupState.RUNNING:
            raise _broken("law 7", f"it preempts {group.id}, which is {group.state.value}")
    for group in decision.resume:
        if group.state is not GroupState.PREEMPTED:
            raise _broken("law 7", f"it resumes {group.id}, which is {group.state.value}")
    for run in decision.run:
        state = run.group.state
        if state is GroupState.FINISHED or (state is GroupState.PREEMPTED and run.group.id not in resumed):
            raise _broken("law 7", f"it runs {run.group.id}, which is {state.value} and not resumed")
        if decision.decode_all and state is GroupState.RUNNING and run.group.decoding:
            raise _broken("law 7", f"{run.group.id} decodes, is covered by decode_all and also named in run")
    if both := victims & runs:
        raise _broken("law 11", f"victims {sorted(both)} also receive slots this step")


def _distinct(groups: list[Group], name: str) -> set[str]:
    ids = {group.id for group in groups}
    if len(ids) != len(groups):
        raise _broken("law 7", f"a group appears twice in {name}")
    return ids


def _check_budget(decision: Decision, view: LedgerView) -> None:
    victims = {group.id for group in decision.preempt}
    tokens = sum(run.num_tokens for run in decision.run)
    if decision.decode_all:
        lost = sum(len(group.live) for group in decision.preempt if group.decoding)
        tokens += view.num_decode_tokens - lost
    if tokens > view.token_budget:
        raise _broken("law 6", f"{tokens} tokens are scheduled, the budget is {view.token_budget}")
    starting = [run.group for run in decision.run if run.group.state is GroupState.WAITING] + decision.resume
    free = view.num_free_seqs + sum(group.num_reserved_rows for group in decision.preempt)
    wanted = sum(group.num_reserved_rows for group in starting)
    if wanted > free:
        raise _broken("law 6", f"{wanted} sequences start while {free} of {view.max_num_seqs} may")
    if victims & {group.id for group in decision.resume}:
        raise _broken("law 11", "a group is preempted and resumed in one step")


def _check_gaps(decision: Decision, view: LedgerView) -> None:
    for group, num_tokens in decision.run:
        gap = view.scratch.gap(group)
        if not 1 <= num_tokens <= gap:
            raise _broken("the gap rule", f"{num_tokens} tokens of {group.id}, whose gap is {gap}")
        if group.state is GroupState.RUNNING and group.decoding and num_tokens != gap:
            raise _broken("the gang rule", f"{num_tokens} of {gap} branches of {group.id} run")
