"""Schedulers: pure policy. A scheduler looks at a view and decides who runs this step; it owns no memory.

    decide(view) -> Decision(run, decode_all, preempt, resume)

The ledger checks every decision before it applies any of it and raises PluginContractError naming the law:
  6  scheduled tokens <= token_budget; sequences of running groups <= max_num_seqs
  7  a group is named at most once among run (running, waiting or resumed groups), preempt (running groups)
 11  a victim receives no slots in the same step
  -  a run's tokens lie in 1 .. scratch.gap(group); a decoding group runs all branches or none (gang)
  -  everything that runs was accepted by `view.scratch.take` or `take_decodes`, so that it fits
 12  schedulers that declare `fcfs`: preempted groups come back before newcomers of equal priority
  -  progress: when something can run, something runs

Capabilities: fcfs, chunked_prefill, priority, unfair (baselines that may starve).
  priority   of those who wait, the smallest `Request.priority` enters first; running groups of a larger one leave
             for it where blocks or sequences are short; equals never do. Waiting makes up for it in the end (law 12)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from paged_core.api.allocator import Scratch
    from paged_core.api.request import Group


@dataclass(frozen=True, slots=True)
class SchedulerNeed:
    """What the engine asks of a scheduler. `num_blocks` is 0 while the pool's size is not known yet (probe only).

    `token_budget` >= `max_num_seqs`: a step can always decode every running sequence.
    """

    token_budget: int
    max_num_seqs: int
    max_len: int
    block_size: int
    num_blocks: int
    chunked_prefill: bool = True
    required: frozenset[str] = frozenset()


class Run(NamedTuple):
    """Compute `num_tokens` of `group` this step: the group's total, which the ledger spreads over its branches."""

    group: Group
    num_tokens: int


@dataclass(slots=True)
class Decision:
    """What happens this step.

    run         groups with their tokens; a waiting group named here is admitted. Batch order is this order
    decode_all  every group in `view.running` that decodes and is not preempted runs one token per branch;
                `run` then lists only the others
    preempt     running groups that leave; how is the preemption plugin's choice
    resume      preempted groups that come back; to compute in this very step they are named in `run` as well
    """

    run: list[Run] = field(default_factory=list)
    decode_all: bool = False
    preempt: list[Group] = field(default_factory=list)
    resume: list[Group] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing at all would happen."""
        return not (self.run or self.decode_all or self.preempt or self.resume)


class View(ABC):
    """What a scheduler may see, valid during one `decide`. Orders: waiting by arrival at the engine; running by
    (re)admission, oldest first; preempted by the moment of leaving, oldest arrival first.

    `waiting` is empty while table rows are short, which takes `max_num_seqs` sequences preempted at once.
    """

    now: float
    step: int
    token_budget: int
    max_num_seqs: int
    scratch: Scratch
    waiting: Iterable[Group]
    running: Sequence[Group]
    preempted: Sequence[Group]
    prefilling: Collection[Group]
    """The running groups that do not decode yet (some gap > 1)."""
    num_decode_tokens: int
    """Branches of the running groups that decode: the tokens `decode_all` would schedule."""
    num_free_seqs: int
    """Sequences that may still start (or resume) running: max_num_seqs minus `num_reserved_rows` of running groups."""

    @abstractmethod
    def eviction_cost(self, group: Group) -> float:
        """Seconds the preemption plugin expects leaving and coming back to cost."""


class Scheduler(ABC):
    """Decides. May keep state of its own about groups (drop it in `forget`, or keep it in `group.notes`)."""

    @abstractmethod
    def decide(self, view: View) -> Decision:
        """Who runs this step. Pure but for the scratch and the scheduler's own notes.

        Asked again for the same `view.step` when a decision that preempts was made while the step before was in flight:
        it is dropped, that step is collected, and there may be room now. Groups whose last token is on its way are not
        in `view.running`.
        """

    def forget(self, group: Group) -> None:
        """`group` ended (finished, aborted or failed); release what is kept about it. Nothing is kept by default."""
        return
