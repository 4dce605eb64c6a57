"""Requests, groups and sequences: who wants tokens, and how far each branch has come.

    Request   what the user asked; frozen
    Group     the sequences of one request: the unit of admission, gang scheduling and preemption, all or nothing
    Sequence  one branch: its tokens, how many are computed, its table row
    Rows      the numbers of all live sequences as columns, one fixed row per sequence from admission to its end

Every sequence has `num_computed` chasing `num_tokens`. Decode is a gap of one; chunked prefill, prefix hits, recompute
and speculation are the same arithmetic. Only the ledger changes any of this; plugins read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.api.params import SamplingParams


class GroupState(Enum):
    """The queue a group is in; exactly one at any time (law 7)."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Residency(Enum):
    """Where a group's keys and values are."""

    NONE = "none"  # nowhere: never computed, or dropped to be recomputed
    DEVICE = "device"  # in the block pool
    HOST = "host"  # swapped out to the host pool


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked. Times are seconds on the engine's clock.

    `cache_salt` and `adapter` enter the prefix hash (law 14). `true_output_len` is known in simulation only.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival: float
    prompt: str | None = None
    priority: int = 0  # smaller is served first by schedulers that look at it
    deadline: float | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    true_output_len: int | None = None


class Rows:
    """Columns over table rows: `column[row]`. int32 unless said; rows of dead sequences hold leftovers.

    tokens        [capacity, max_len]  prompt and output ids; valid below num_tokens
    num_tokens    prompt and output; the last token may still be on its way, drawn by a step in flight
    num_computed  positions whose keys and values exist once all steps that were submitted have run
    num_prompt    prompt length
    max_tokens    length at which the sequence ends (prompt + allowed output, model limit included)
    """

    __slots__ = ("capacity", "max_len", "max_tokens", "num_computed", "num_prompt", "num_tokens", "tokens")

    def __init__(self, capacity: int, max_len: int) -> None:
        import numpy as np

        self.capacity = capacity
        self.max_len = max_len
        self.tokens: NDArray[np.int32] = np.zeros((capacity, max_len + 1), dtype=np.int32)
        self.num_tokens: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.num_computed: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.num_prompt: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.max_tokens: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)


class Sequence:
    """One branch of a group. `row` is its row in `Rows` and in the allocator's table, or -1 before admission.

    `parent` and `divergence` record the fork tree: this branch shares its first `divergence` tokens with `parent`.
    They survive preemption, so that a restore computes each shared span once (design 4b.4). `cold` sequences take no
    prefix hits: their prompt log-probabilities still have to be computed (design 4b.8), or the request wants none.
    """

    __slots__ = ("__weakref__", "cold", "divergence", "finish_reason", "index", "parent", "request", "row", "rows")

    def __init__(self, request: Request, index: int = 0) -> None:
        self.request = request
        self.index = index
        self.row = -1
        self.rows: Rows | None = None
        self.parent: Sequence | None = None
        self.divergence = 0
        self.cold = request.params.prompt_logprobs is not None or bool(request.params.skip_reading_prefix_cache)
        self.finish_reason: str | None = None

    def bind(self, rows: Rows, row: int) -> None:
        """Take a row: prompt copied in, nothing computed. The ledger calls it once, at admission."""
        prompt = self.request.prompt_token_ids
        num = len(prompt)
        rows.tokens[row, :num] = prompt
        rows.num_tokens[row] = num
        rows.num_computed[row] = 0
        rows.num_prompt[row] = num
        limit = self.request.params.max_tokens
        rows.max_tokens[row] = rows.max_len if limit is None else min(rows.max_len, num + limit)
        self.rows, self.row = rows, row

    @property
    def num_tokens(self) -> int:
        """Prompt plus output tokens known so far."""
        return len(self.request.prompt_token_ids) if self.rows is None else int(self.rows.num_tokens[self.row])

    @property
    def num_computed(self) -> int:
        """Leading positions whose keys and values are resident."""
        return 0 if self.rows is None else int(self.rows.num_computed[self.row])

    @property
    def gap(self) -> int:
        """Tokens still to compute before this sequence can sample."""
        return self.num_tokens - self.num_computed

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return self.num_tokens - len(self.request.prompt_token_ids)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Prompt and output ids, int32 [num_tokens]: a view while the sequence has a row, else a new array."""
        return self.token_slice(0, self.num_tokens)

    def token_slice(self, begin: int, end: int) -> NDArray[np.int32]:
        """`token_ids[begin:end]`, at the price of these alone: the prompt of a sequence without a row is not copied."""
        if self.rows is None:
            import numpy as np

            return np.asarray(self.request.prompt_token_ids[begin:end], dtype=np.int32)
        return self.rows.tokens[self.row, begin : min(end, int(self.rows.num_tokens[self.row]))]

    @property
    def finished(self) -> bool:
        """Whether the branch has ended."""
        return self.finish_reason is not None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Group:
    """All sequences of one request. Schedulers see groups; the ledger alone changes them."""

    request: Request
    sequences: list[Sequence]
    state: GroupState = GroupState.WAITING
    residency: Residency = Residency.NONE
    num_preemptions: int = 0
    first_scheduled: float | None = None
    notes: dict[str, object] = field(default_factory=dict)
    """Free for the scheduler: per-group bookkeeping that dies with the group."""

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""
        return self.request.arrival

    @property
    def priority(self) -> int:
        """Smaller is more urgent."""
        return self.request.priority

    @property
    def max_tokens(self) -> int | None:
        """Output tokens a branch may still reach at most, or None when only the model limits it."""
        return self.request.params.max_tokens

    @property
    def true_output_len(self) -> int | None:
        """Known in simulation only; a scheduler that reads it is an oracle and should say so."""
        return self.request.true_output_len

    @property
    def num_reserved_rows(self) -> int:
        """Table rows to set aside at admission: max(n, best_of, beam_width)."""
        return self.request.params.num_sequences

    @property
    def live(self) -> list[Sequence]:
        """Branches that have not ended."""
        return [seq for seq in self.sequences if seq.finish_reason is None]

    @property
    def num_tokens(self) -> int:
        """Longest branch, prompt included."""
        return max((seq.num_tokens for seq in self.live), default=0)

    @property
    def gap(self) -> int:
        """Tokens to compute before every live branch can sample; a span shared by branches counts once.

        Prefix-cache hits are not subtracted: ask `Scratch.gap` for that.
        """
        live = self.live
        if len(live) == 1:
            return live[0].gap
        if all(seq.gap <= 1 for seq in live):
            return sum(seq.gap for seq in live)
        return sum(tail for _, tail in spread(live))

    @property
    def decoding(self) -> bool:
        """Whether every live branch has a gap of exactly one: the group runs all branches or none (gang).

        A group that is still to fork does not decode yet, however small its gap: its next draw makes the branches.
        """
        return len(self.sequences) >= self.num_reserved_rows and all(seq.gap == 1 for seq in self.live)


def spread(live: list[Sequence]) -> list[tuple[Sequence, int]]:
    """Each branch's own part of the group's gap, in branch order: the fixed rule of design 4b.1.

    A branch whose parent is live does not compute what it shares with it: only tokens from
    max(num_computed, divergence) on are its own.
    """
    alive = set(map(id, live))
    result = []
    for seq in live:
        start = seq.num_computed
        if seq.parent is not None and id(seq.parent) in alive:
            start = max(start, seq.divergence)
        result.append((seq, seq.num_tokens - start))
    return result


def share_out(parts: list[tuple[Sequence, int]], num_tokens: int) -> list[tuple[Sequence, int]]:
    """Tokens each branch computes when its group runs `num_tokens`; `parts` is `spread(live)`, less prefix hits.

    All of the gap: every branch computes its part and then samples. Less: in branch order, and each branch of several
    stops one short of its part, for its last token waits until the whole gang can sample. A branch that is still to be
    forked (its live parent has not computed `divergence` tokens) counts here, so that whole needs are whole, but the
    ledger cannot run it in this step: it then runs less than asked, the others one short.
    """
    if num_tokens >= sum(own for _, own in parts):
        return parts
    kept = 0 if len(parts) == 1 else 1
    result = []
    for seq, own in parts:
        num = max(0, min(own - kept, num_tokens))
        num_tokens -= num
        result.append((seq, num))
    return result
