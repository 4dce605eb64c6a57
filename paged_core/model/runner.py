"""Runner: one StepPlan through decoder and sampler on one device. Executors wrap it.

Moves run first, in the order of the contract: swap-outs, swap-ins, block copies; then the forward pass writes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.batch import Batch, StepPlan, StepResult, TopLogprobs
from paged_core.device.staging import slots_of
from paged_core.device.upload import beside
from paged_core.model.pressure import CpuPressure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.api.sampler import Sampler, Samples
    from paged_core.model.decoder import Decoder
    from paged_core.tracing import Trace

_PROMPT_ROWS = 128  # prompt logits are materialised in pieces of so many rows


class Runner:
    """Executes plans. `caches` and `host_caches` hold one tensor per layer; `tables` is the allocator's array.

    A step is done when `run` returns; with two in flight, a plan's open tokens are the draws of the run before.
    Ranks of a group that have no sampler compute the same steps, logits included, and draw nothing.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        sampler: Sampler | None,
        caches: tuple[Sequence[Tensor], Sequence[Tensor]],
        tables: tuple[NDArray[np.int32], int],
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._sampler = sampler
        self._caches = caches
        self._tables, self._block_size = tables
        self._drawn = np.zeros(0, dtype=np.int32)
        # a rank waits for others all the time, which says nothing about other processes
        judges = decoder.device.type == "cpu" and not decoder.is_part
        self._pressure = CpuPressure(torch.get_num_threads()) if judges else None

    def watch(self, trace: Trace) -> None:
        """Time the parts of every step from now on."""
        trace.watch(self, {"_move": "move blocks", "_forward": "forward", "_sample": "head and sample"})
        trace.watch(self._attention, {"plan": "plan attention", "forward": "attention"})
        if self._sampler is not None:
            trace.watch(self._sampler, {"sample": "sample"})
        self._decoder.watch(trace)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Moves, forward pass, sampling. The one device synchronisation is where sampled tokens become numpy."""
        begin, cpu = time.perf_counter(), time.thread_time()
        restart(self._sampler, plan)
        self._move(plan)
        result = no_result(plan)
        if plan.num_tokens:
            hidden = self._forward(plan)
            self._sample(plan, hidden, result)
            prompt_logprobs(self._decoder, self._sampler, plan, hidden, result)
        self._drawn = result.tokens[:, 0] if len(plan.sample_rows) else self._drawn[:0]
        result.elapsed_s = time.perf_counter() - begin
        if self._pressure is not None:
            self._pressure.add(result.elapsed_s, time.thread_time() - cpu)
        return result

    def _move(self, plan: StepPlan) -> None:
        move_blocks(self._attention, self._caches, plan)

    def _forward(self, plan: StepPlan) -> Tensor:
        """Hidden states [tokens, hidden] after the last norm."""
        device = self._decoder.device
        tokens = torch.from_numpy(self._token_ids(plan)).to(device, torch.int64)
        positions = torch.from_numpy(plan.positions).to(device, torch.int64)
        batch = Batch(
            num_tokens=plan.num_tokens,
            num_seqs=len(plan.rows),
            query_start=plan.query_start,
            seq_lens=plan.seq_lens,
            rows=plan.rows,
            tables=self._tables,
            positions=plan.positions,
            slots=slots_of(plan, self._tables, self._block_size),
            shared_prefixes=plan.shared_prefixes,
        )
        if self._decoder.fused_rope:
            batch.rope = self._decoder.rope_tables(positions)
        return self._decoder.forward(tokens, positions, self._caches[0], self._attention.plan(batch))

    def _token_ids(self, plan: StepPlan) -> NDArray[np.int32]:
        if plan.token_source is None:
            return plan.token_ids
        drawn = plan.token_source >= 0
        token_ids = plan.token_ids.copy()
        token_ids[drawn] = self._drawn[plan.token_source[drawn]]
        return token_ids

    def _sample(self, plan: StepPlan, hidden: Tensor, result: StepResult) -> None:
        if len(plan.sample_index) == 0:
            return
        rows = torch.from_numpy(plan.sample_index).to(hidden.device, torch.int64)
        logits = self._decoder.logits(hidden.index_select(0, rows))
        if self._sampler is not None:
            draw(self._sampler, logits, plan, result)


def restart(sampler: Sampler | None, plan: StepPlan) -> None:
    """Tell the sampler which rows end and which start with this step."""
    if sampler is None:
        return
    for row in plan.ended:
        sampler.end(row)
    for start in plan.started:
        sampler.start(start)


def move_blocks(attention: Attention, caches: tuple[Sequence[Tensor], Sequence[Tensor]], plan: StepPlan) -> None:
    """The plan's moves between and within the pools of device and host."""
    here, host = caches
    if plan.swap_out:
        attention.swap_blocks(here, host, plan.swap_out)
    if plan.swap_in:
        attention.swap_blocks(host, here, plan.swap_in)
    if plan.copies:
        attention.copy_blocks(here, plan.copies)


def no_result(plan: StepPlan) -> StepResult:
    """A result without draws, to be filled."""
    return StepResult(plan.step, np.zeros((0, 1), np.int32), np.zeros(0, np.int32), 0.0)


def prompt_logprobs(
    decoder: Decoder, sampler: Sampler | None, plan: StepPlan, hidden: Tensor, result: StepResult
) -> None:
    """Enter the log-probabilities of prompt tokens that the plan asks for. The host waits for them.

    Without a sampler the logits are computed all the same: other ranks of the group wait for this one's.
    """
    for want in plan.prompt_rows:
        parts = []
        for begin in range(0, len(want.targets), _PROMPT_ROWS):
            index = beside(want.token_index[begin : begin + _PROMPT_ROWS].astype(np.int64), hidden)
            logits = decoder.logits(hidden.index_select(0, index))
            targets = want.targets[begin : begin + _PROMPT_ROWS]
            if sampler is not None:
                parts.append(sampler.logprobs(logits, targets, want.num_logprobs))
        if parts:
            result.prompt_logprobs[want.row] = (want.first_position, _joined(parts))


def draw(sampler: Sampler, logits: Tensor, plan: StepPlan, result: StepResult) -> None:
    """Let `sampler` draw all of the plan's tokens from `logits` [draws, vocab] and enter what it says into `result`."""
    enter(sampler.sample(logits, plan.sample_rows, plan.sample_positions, plan.num_candidates), plan, result)


def enter(samples: Samples, plan: StepPlan, result: StepResult) -> None:
    """The samples of all of the plan's draws become part of its result."""
    draws = len(plan.sample_rows)
    most = max(map(len, samples.forced.values()), default=0)
    result.tokens = np.zeros((draws, 1 + most), dtype=np.int32)
    result.num_tokens = np.ones(draws, dtype=np.int32)
    for i, forced in samples.forced.items():
        result.tokens[i, 1 : 1 + len(forced)] = forced
        result.num_tokens[i] += len(forced)
    result.tokens[:, 0] = samples.tokens
    result.logprobs, result.candidates = samples.logprobs, samples.candidates
    for i, reason in samples.failed.items():
        result.num_tokens[i] = 0
        result.failed[int(plan.sample_rows[i])] = reason


def _joined(parts: list[TopLogprobs]) -> TopLogprobs:
    return TopLogprobs(
        np.concatenate([part.chosen for part in parts]),
        np.concatenate([part.rank for part in parts]),
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.logprobs for part in parts]),
    )
