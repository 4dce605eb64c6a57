"""ShadowExecutor: an executor without a model that notices every mistake in block tables, copies and swaps.

Its "keys and values" are the token ids themselves, written to (block, slot) as attention would write them. Each draw
reads the whole sequence back through the block table and hashes what it finds; the hash is the next token. A wrong
block, a missing copy, a stale swap or a block reused too early changes the tokens, so equality with an undisturbed run
proves the paging right.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from paged_core.api.batch import StepPlan, StepResult, TopLogprobs
from paged_core.api.executor import Executor, KVCapacity, Ticket

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.api.batch import RowStart


class ShadowTicket(Ticket):
    """A step and its tokens."""

    __slots__ = ("result",)

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        super().__init__(plan)
        self.result = result


class ShadowExecutor(Executor):
    """Tokens lie in [low, high). Rows that are not greedy also hash their seed, so that branches part.

    `step_s` is the elapsed time it reports per step.
    """

    def __init__(self, block_size: int, low: int = 97, high: int = 123, step_s: float = 0.001) -> None:
        self.block_size = block_size
        self.plans: list[StepPlan] = []
        self.keep_plans = False
        self._range = (low, high)
        self._step_s = step_s
        self._tables: NDArray[np.int32] | None = None
        self._salts: dict[int, bytes] = {}

    def capacity(self) -> KVCapacity:
        """Not limited."""
        return KVCapacity(1 << 20, 1 << 20, self.block_size)

    def start(self, num_blocks: int, num_host_blocks: int, tables: NDArray[np.int32]) -> None:
        """Allocate the shadow pools, filled with a value no token has."""
        self._pool = np.full((num_blocks, self.block_size), -1, dtype=np.int64)
        self._host = np.full((num_host_blocks, self.block_size), -1, dtype=np.int64)
        self._tables = tables

    def submit(self, plan: StepPlan) -> Ticket:
        """Moves in the contract's order, then writes, then reads."""
        assert self._tables is not None
        for src, dst in plan.swap_out:
            self._host[dst] = self._pool[src]
        for src, dst in plan.swap_in:
            self._pool[dst] = self._host[src]
        if plan.copies:
            sources = [src for src, _ in plan.copies]
            self._pool[[dst for _, dst in plan.copies]] = self._pool[sources]
        for start in plan.started:
            self._salts[start.row] = self._salt(start)
        if self.keep_plans:
            self.plans.append(plan)
        self._write(plan)
        return ShadowTicket(plan, self._drawn(plan, [self._digest(plan, i) for i in range(len(plan.sample_rows))]))

    def collect(self, ticket: Ticket) -> StepResult:
        """The result of `submit`."""
        assert isinstance(ticket, ShadowTicket)
        return ticket.result

    def close(self) -> None:
        """Nothing to release."""

    def _salt(self, start: RowStart) -> bytes:
        return b"" if start.params.greedy else start.seed.to_bytes(16, "little", signed=True)

    def _drawn(self, plan: StepPlan, digests: list[bytes]) -> StepResult:
        """One token for each digest."""
        tokens = np.array([self._token(digest, 0) for digest in digests], dtype=np.int32)
        result = StepResult(plan.step, tokens.reshape(-1, 1), np.ones(len(tokens), dtype=np.int32), self._step_s)
        if plan.num_candidates is not None:
            for i in np.flatnonzero(plan.num_candidates):
                result.candidates[int(i)] = self._candidates(digests[i], int(plan.num_candidates[i]))
        return result

    def _write(self, plan: StepPlan) -> None:
        assert self._tables is not None
        rows = np.repeat(plan.rows, np.diff(plan.query_start))
        blocks = self._tables[rows, plan.positions // self.block_size]
        self._pool[blocks, plan.positions % self.block_size] = plan.token_ids

    def _digest(self, plan: StepPlan, i: int) -> bytes:
        """A hash of everything draw `i` reads."""
        reader = np.searchsorted(plan.query_start, plan.sample_index[i], side="right") - 1
        row, length = int(plan.rows[reader]), int(plan.sample_positions[i])
        return self._read(row, length, self._salts[int(plan.sample_rows[i])])

    def _read(self, row: int, length: int, salt: bytes) -> bytes:
        """A hash of a row's first tokens, read through the block table."""
        assert self._tables is not None
        blocks = self._tables[row, : -(-length // self.block_size)]
        seen = self._pool[blocks].reshape(-1)[:length]
        return hashlib.blake2b(seen.tobytes(), key=salt, digest_size=8).digest()

    def _token(self, digest: bytes, rank: int) -> int:
        low, high = self._range
        return low + (int.from_bytes(digest, "little") + rank) % (high - low)

    def _candidates(self, digest: bytes, num: int) -> TopLogprobs:
        """Log-probabilities whose gaps are the digest's bytes, so that beams of one group take turns in the lead."""
        low, high = self._range
        num = min(num, high - low)
        gaps = np.array([digest[rank % len(digest)] for rank in range(num)], dtype=np.float32) / 128 + 0.01
        logprobs = -np.cumsum(gaps, dtype=np.float32).reshape(1, -1)
        tokens = np.array([[self._token(digest, rank) for rank in range(num)]], dtype=np.int32)
        return TopLogprobs(logprobs[:, 0], np.ones(1, dtype=np.int32), tokens, logprobs)
