"""Runner: one StepPlan through decoder and sampler on one device. Executors wrap it.

Moves run first, in the order of the contract: swap-outs, swap-ins, block copies; then the forward pass writes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from paged_core.api.batch import Batch, StepPlan, StepResult, TopLogprobs
from paged_core.model.pressure import CpuPressure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.api.attention import Attention
    from paged_core.api.sampler import Sampler
    from paged_core.model.decoder import Decoder
    from paged_core.tracing import Trace

_PROMPT_ROWS = 128  # prompt logits are materialised in pieces of so many rows


class Runner:
    """Executes plans. `caches` and `host_caches` hold one tensor per layer; `tables` is the allocator's array."""

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        sampler: Sampler,
        caches: tuple[Sequence[Tensor], Sequence[Tensor]],
        tables: tuple[NDArray[np.int32], int],
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._sampler = sampler
        self._caches, self._host_caches = caches
        self._tables, self._block_size = tables
        self._pressure = CpuPressure(torch.get_num_threads()) if decoder.device.type == "cpu" else None

    def watch(self, trace: Trace) -> None:
        """Time the parts of every step from now on."""
        trace.watch(self, {"_move": "move blocks", "_forward": "forward", "_sample": "head and sample"})
        trace.watch(self._attention, {"plan": "plan attention", "forward": "attention"})
        trace.watch(self._sampler, {"sample": "sample"})
        self._decoder.watch(trace)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Moves, forward pass, sampling. The one device synchronisation is where sampled tokens become numpy."""
        begin, cpu = time.perf_counter(), time.thread_time()
        for row in plan.ended:
            self._sampler.end(row)
        for start in plan.started:
            self._sampler.start(start)
        self._move(plan)
        result = StepResult(plan.step, np.zeros((0, 1), np.int32), np.zeros(0, np.int32), 0.0)
        if plan.num_tokens:
            hidden = self._forward(plan)
            self._sample(plan, hidden, result)
            self._prompt_logprobs(plan, hidden, result)
        result.elapsed_s = time.perf_counter() - begin
        if self._pressure is not None:
            self._pressure.add(result.elapsed_s, time.thread_time() - cpu)
        return result

    def _move(self, plan: StepPlan) -> None:
        if plan.swap_out:
            self._attention.swap_blocks(self._caches, self._host_caches, plan.swap_out)
        if plan.swap_in:
            self._attention.swap_blocks(self._host_caches, self._caches, plan.swap_in)
        if plan.copies:
            self._attention.copy_blocks(self._caches, plan.copies)

    def _forward(self, plan: StepPlan) -> Tensor:
        """Hidden states [tokens, hidden] after the last norm."""
        device = self._decoder.device
        tokens = torch.from_numpy(plan.token_ids).to(device, torch.int64)
        positions = torch.from_numpy(plan.positions).to(device, torch.int64)
        batch = Batch(
            num_tokens=plan.num_tokens,
            num_seqs=len(plan.rows),
            query_start=plan.query_start,
            seq_lens=plan.seq_lens,
            rows=plan.rows,
            tables=self._tables,
            positions=plan.positions,
            slots=self._slots(plan),
            shared_prefixes=plan.shared_prefixes,
        )
        if self._decoder.fused_rope:
            batch.rope = self._decoder.rope_tables(positions)
        return self._decoder.forward(tokens, positions, self._caches, self._attention.plan(batch))

    def _slots(self, plan: StepPlan) -> NDArray[np.int64]:
        row_of_token = np.repeat(plan.rows, np.diff(plan.query_start))
        block, offset = np.divmod(plan.positions, self._block_size)
        return self._tables[row_of_token, block].astype(np.int64) * self._block_size + offset

    def _sample(self, plan: StepPlan, hidden: Tensor, result: StepResult) -> None:
        if len(plan.sample_index) == 0:
            return
        rows = torch.from_numpy(plan.sample_index).to(hidden.device, torch.int64)
        draw(self._sampler, self._decoder.logits(hidden.index_select(0, rows)), plan, result)

    def _prompt_logprobs(self, plan: StepPlan, hidden: Tensor, result: StepResult) -> None:
        for want in plan.prompt_rows:
            parts = []
            for begin in range(0, len(want.targets), _PROMPT_ROWS):
                index = torch.from_numpy(want.token_index[begin : begin + _PROMPT_ROWS]).to(hidden.device, torch.int64)
                logits = self._decoder.logits(hidden.index_select(0, index))
                targets = want.targets[begin : begin + _PROMPT_ROWS]
                parts.append(self._sampler.logprobs(logits, targets, want.num_logprobs))
            result.prompt_logprobs[want.row] = (want.first_position, _joined(parts))


def draw(sampler: Sampler, logits: Tensor, plan: StepPlan, result: StepResult) -> None:
    """Let `sampler` draw all of the plan's tokens from `logits` [draws, vocab] and enter what it says into `result`."""
    draws = len(plan.sample_rows)
    samples = sampler.sample(logits, plan.sample_rows, plan.sample_positions, plan.num_candidates)
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
