"""Outcome: what a simulation has seen, as columns: one place a request, one a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from paged_core.sim.system import System

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """Columns [requests], in the order of arrival. Seconds on the simulated clock, which starts at 0.

    arrival_s        as the trace says
    first_token_s    NaN while there was none; of a beam search, its first step
    finish_s         NaN: rejected, or not finished by `until`
    prompt_tokens, output_tokens   as the trace says; tokens of one branch
    generated_tokens tokens that came out, over all branches; of unfinished requests, by `until`
    num_preemptions  how often it was preempted
    cached_tokens    prompt tokens found in the prefix cache at its first admission
    rejected         it could never run: too long for the model or the pool
    cut              it ended before its true length: the model's limit, or a pool too small for it alone
    client           names, "" where the trace says none
    """

    arrival_s: Floats
    first_token_s: Floats
    finish_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    generated_tokens: Ints
    num_preemptions: Ints
    cached_tokens: Ints
    rejected: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    client: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Which ones ran to their end."""
        return ~np.isnan(self.finish_s)

    @property
    def latency_s(self) -> Floats:
        """From arrival to the end; NaN without one."""
        return self.finish_s - self.arrival_s

    @property
    def normalized_latency_s(self) -> Floats:
        """Seconds a token of the output (the paper's metric takes the mean over requests); NaN without an end."""
        return self.latency_s / self.output_tokens


@dataclass(frozen=True, slots=True)
class Steps:
    """Columns [steps]. The pool's are as the step ends, before what ended with it is freed.

    begin_s, elapsed_s   when the step began, and how long it took
    num_groups, num_seqs running requests, and their live sequences
    num_waiting          requests that are neither running nor preempted
    num_preempted        requests that are preempted
    prefill_tokens, decode_tokens   computed in the step
    used_slots           slots of blocks that some sequence holds: token + reserved + internal, and what an allocator
                         that reserves ahead rounded up
    token_slots          slots that hold a token's keys and values
    reserved_slots       slots that the request which holds them will fill later
    internal_slots       slots that a request asked for and will never fill
    total_slots          slots of the pool; those of no kind above are free or lost to rounding (the paper's "external
                         fragmentation and others")
    saved_blocks         references to blocks beyond each one's first: what sharing saves
    """

    begin_s: Floats
    elapsed_s: Floats
    num_groups: Ints
    num_seqs: Ints
    num_waiting: Ints
    num_preempted: Ints
    prefill_tokens: Ints
    decode_tokens: Ints
    used_slots: Ints
    token_slots: Ints
    reserved_slots: Ints
    internal_slots: Ints
    total_slots: Ints
    saved_blocks: Ints

    def __len__(self) -> int:
        return len(self.begin_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulation's result. `end_s`: where its clock stood; `reasons`: why requests were rejected or cut, counted.

    `prefix_queries` and `prefix_hits`: tokens looked up in the prefix cache, and found. `preemptions`: by mode.
    `wall_s`: seconds the simulation took on this machine, and the only figure that differs between equal ones.
    """

    system: System
    requests: Requests
    steps: Steps
    end_s: float
    plugins: Mapping[str, str]
    cost: str
    reasons: Mapping[str, int]
    preemptions: Mapping[str, int]
    prefix_queries: int
    prefix_hits: int
    wall_s: float
