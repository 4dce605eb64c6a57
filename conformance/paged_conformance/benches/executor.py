"""ExecutorBench: an executor on the tiny Llama, fed with plans that the bench writes itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.attention import AttentionNeed
from paged_core.api.batch import RowStart, StepPlan
from paged_core.api.executor import ExecutorNeed
from paged_core.api.loader import LoaderNeed
from paged_core.api.sampler import SamplerNeed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from paged_conformance.candidate import Candidate
    from paged_conformance.oracles.llama import PlainLlama
    from paged_core.api.batch import StepResult
    from paged_core.api.executor import Executor
    from paged_core.api.model import ModelSpec
    from paged_core.api.params import SamplingParams

BLOCK_SIZE = 16
MAX_ROWS = 8
MAX_LEN = 128
NUM_BLOCKS = 48
NUM_HOST_BLOCKS = 16
TIE = 1e-3  # law 15: where the reference's best logits lie closer, either token is right
NO_BLOCK = 0  # what table entries hold that no sequence owns


@dataclass(eq=False, slots=True)
class Running:
    """One sequence as the ledger keeps it: all its tokens, how many of them are computed, its table row."""

    row: int
    tokens: list[int]
    params: SamplingParams
    num_prompt: int
    seed: int = 0
    num_computed: int = 0
    started: bool = False

    @property
    def output(self) -> list[int]:
        """Tokens drawn so far."""
        return self.tokens[self.num_prompt :]


@dataclass(slots=True)
class Moves:
    """Block moves of one step, as (source, target) pairs."""

    swap_out: Sequence[tuple[int, int]] = ()
    swap_in: Sequence[tuple[int, int]] = ()
    copies: Sequence[tuple[int, int]] = ()


def need_for(candidate: Candidate, spec: ModelSpec, names: Mapping[str, str], model: str) -> ExecutorNeed:
    """A float32 need for the tiny model."""
    return ExecutorNeed(
        model=model,
        spec=spec,
        loader=names["loader"],
        attn=names["attn"],
        sampler=names["sampler"],
        device=candidate.device,
        dtype="float32",
        kv_dtype="float32",
        block_size=BLOCK_SIZE,
        max_rows=MAX_ROWS,
        max_len=MAX_LEN,
        token_budget=MAX_LEN,
        kv_memory_bytes=1 << 22,
        host_memory_bytes=1 << 21,
        threads=1,
        eos_token_ids=spec.eos_token_ids,
    )


def tiny_need(candidate: Candidate, folder: Path) -> ExecutorNeed:
    """The need for the model in `folder`, with whatever loader, attention and sampler fit it here."""
    plugins, device = candidate.plugins, candidate.device
    model = LoaderNeed(str(folder))
    loader = plugins.select("loader", "auto", model).name
    spec = plugins.create("loader", loader, model).spec()
    attention = AttentionNeed(
        device, "float32", "float32", spec.num_heads, spec.num_kv_heads, spec.head_dim, BLOCK_SIZE
    )
    attention = replace(attention, max_len=MAX_LEN, max_rows=MAX_ROWS, token_budget=MAX_LEN)
    names = {
        "loader": loader,
        "attn": plugins.select("attn", "auto", attention).name,
        "sampler": plugins.select("sampler", "auto", SamplerNeed(device, spec.vocab_size, MAX_ROWS)).name,
    }
    return need_for(candidate, spec, names, str(folder))


class ExecutorBench:
    """A started executor and a ledger just good enough to write its plans. Blocks are dealt in random order."""

    def __init__(self, candidate: Candidate, need: ExecutorNeed) -> None:
        self.simulated = candidate.has("simulated")
        self.vocab_size = need.spec.vocab_size
        self.tables: NDArray[np.int32] = np.full((MAX_ROWS, MAX_LEN // BLOCK_SIZE), NO_BLOCK, dtype=np.int32)
        self._steps = 0
        self._rows: set[int] = set()  # that have started
        self._clear()
        self.executor: Executor = candidate.create(need)
        self.executor.start(NUM_BLOCKS, NUM_HOST_BLOCKS, self.tables)

    def _clear(self) -> None:
        self.tables[:] = NO_BLOCK
        self.free: list[int] = np.random.default_rng(0).permutation(np.arange(1, NUM_BLOCKS)).tolist()
        self.num_blocks = [0] * MAX_ROWS
        self._told = self.tables.copy()  # as the plans so far have it

    def renew(self) -> bool:
        """End all sequences, as if nothing had run. False where the executor runs no step any more."""
        self._clear()
        rows, self._rows = sorted(self._rows), set()
        try:
            self.executor.collect(self.executor.submit(self.plan({}, ended=rows)))
        except Exception:
            return False  # whatever a test did to it; that test has told
        return True

    def blocks(self, running: Running) -> list[int]:
        """The blocks a sequence holds."""
        return [int(block) for block in self.tables[running.row, : self.num_blocks[running.row]]]

    def plan(self, work: Mapping[Running, int], moves: Moves | None = None, ended: Sequence[int] = ()) -> StepPlan:
        """The plan of a step that computes so many tokens of each sequence; one that reaches its end draws."""
        order = sorted(work, key=lambda running: work[running] > 1)  # decodes first
        for running in order:
            self._grow(running, running.num_computed + work[running])
        changed = np.flatnonzero((self.tables != self._told).any(axis=1))
        self._told[:] = self.tables
        spans = [range(each.num_computed, each.num_computed + work[each]) for each in order]
        starts = np.cumsum([0, *map(len, spans)])
        drawing = [i for i, each in enumerate(order) if spans[i].stop == len(each.tokens)]
        moves = moves or Moves()
        self._steps += 1
        self._rows |= {each.row for each in order}
        return StepPlan(
            step=self._steps,
            token_ids=_int32([each.tokens[p] for each, span in zip(order, spans, strict=True) for p in span]),
            positions=_int32([position for span in spans for position in span]),
            query_start=_int32(starts),
            rows=_int32([each.row for each in order]),
            seq_lens=_int32([span.stop for span in spans]),
            sample_index=_int32([starts[i + 1] - 1 for i in drawing]),
            sample_rows=_int32([order[i].row for i in drawing]),
            sample_positions=_int32([spans[i].stop for i in drawing]),
            changed_rows=_int32(changed),
            swap_out=[SwapPair(*pair) for pair in moves.swap_out],
            swap_in=[SwapPair(*pair) for pair in moves.swap_in],
            copies=[BlockCopy(*pair) for pair in moves.copies],
            started=[_start(each) for each in order if not each.started],
            ended=list(ended),
        )

    def step(self, work: Mapping[Running, int], moves: Moves | None = None) -> StepResult:
        """Plan, submit, collect, and enter the drawn tokens."""
        plan = self.plan(work, moves)
        result = self.executor.collect(self.executor.submit(plan))
        self.commit(work, plan, result)
        return result

    def commit(self, work: Mapping[Running, int], plan: StepPlan, result: StepResult) -> None:
        """Enter a collected step into the sequences."""
        assert result.step == plan.step, f"collect returned step {result.step} for the ticket of step {plan.step}"
        draws = len(plan.sample_rows)
        shape = np.asarray(result.tokens).shape
        assert shape == (draws, 1), f"tokens have shape {shape}; without speculation it is (draws, 1) = ({draws}, 1)"
        by_row = {running.row: running for running in work}
        for running, count in work.items():
            running.num_computed += count
            running.started = True
        for row, token, accepted in zip(plan.sample_rows, result.tokens[:, 0], result.num_tokens, strict=True):
            if accepted:
                by_row[int(row)].tokens.append(int(token))

    def decode(self, sequences: Sequence[Running], count: int) -> None:
        """Compute what is missing in one step, then decode, all together, `count` tokens in all."""
        for _ in range(count):
            self.decode_with(sequences, Moves())

    def decode_with(self, sequences: Sequence[Running], moves: Moves) -> None:
        """One more token each, in a step that moves blocks first."""
        self.step({running: len(running.tokens) - running.num_computed for running in sequences}, moves)

    def check(self, reference: PlainLlama, sequences: Sequence[Running], what: str = "") -> None:
        """Law 15: outputs equal the reference's up to a tie. A simulated executor's tokens only have to be tokens."""
        for each in sequences:
            if self.simulated:
                assert all(0 <= token < self.vocab_size for token in each.output), f"no tokens: {each.output}"
                continue
            wanted = reference.continue_greedily(each.tokens[: each.num_prompt], len(each.output))
            tie = next((i for i, gap in enumerate(wanted.gaps) if gap < TIE), len(wanted.gaps))
            assert each.output[:tie] == wanted.tokens[:tie], (
                f"law 15{what and ': '}{what}: a prompt of {each.num_prompt} tokens was continued by {each.output}, "
                f"the plain reference says {wanted.tokens} (compared up to token {tie})"
            )

    def _grow(self, running: Running, length: int) -> None:
        wanted, row = -(-length // BLOCK_SIZE), running.row
        while self.num_blocks[row] < wanted:
            self.tables[row, self.num_blocks[row]] = self.free.pop()
            self.num_blocks[row] += 1


class Lending:
    """One executor for test after test, as starting it may take seconds; a new one where a test has ended it."""

    def __init__(self, candidate: Candidate, need: ExecutorNeed) -> None:
        self._candidate, self._need = candidate, need
        self._bench: ExecutorBench | None = None

    def bench(self) -> ExecutorBench:
        """A started executor that nothing runs on."""
        if self._bench is None or not self._bench.renew():
            self.end()
            self._bench = ExecutorBench(self._candidate, self._need)
        return self._bench

    def end(self) -> None:
        """Close it."""
        if self._bench is not None:
            self._bench.executor.close()


def _start(running: Running) -> RowStart:
    prompt, output = running.tokens[: running.num_prompt], running.output
    return RowStart(running.row, running.params, running.seed, 0, _int32(prompt), _int32(output))


def _int32(values: Any) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
