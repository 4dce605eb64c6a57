"""Messages between an engine and its workers, as bytes: a kind, then what it says. Both ends are of one installation.

    engine -> workers   STEP, the same bytes for every rank, and orders (pickled)
    worker -> engine    RESULT of a step, from rank 0, and answers (pickled)

A step is a header, the plan's arrays one after the other, what changed of the block tables, and only where there is
something rare (rows that start, prompt log-probabilities) a pickled tail:

    | kind, step, 21 lengths | token_ids | positions | .. | entries, blocks | .. | tail |

`StepWriter` knows what the workers' tables hold and sends the entries that differ, `StepReader` keeps those tables. 256
decodes are 8.4 kB and take 27 us to write and 15 us to read; no Python loop runs over sequences.
"""

from __future__ import annotations

import pickle
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.allocator import BlockCopy, SwapPair
from paged_core.api.batch import StepPlan, StepResult
from paged_core.model.parallel.sampling_state import StateReader, StateWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]

STEP, ORDER, RESULT, ANSWER = range(4)
_ARRAYS = (
    "token_ids",
    "positions",
    "query_start",
    "rows",
    "seq_lens",
    "sample_index",
    "sample_rows",
    "sample_positions",
)
_MAYBE = ("num_candidates", "token_source")
_PAIRS = ("swap_out", "swap_in", "copies")
_NUM_PARTS = len(_ARRAYS) + len(_MAYBE) + len(_PAIRS) + 6  # entries, blocks, ended, and three of shared prefixes
_STEP = struct.Struct(f"<B7xq{_NUM_PARTS}i")
_RESULT = struct.Struct("<B7xqd3i")
_NOTHING = np.zeros(0, dtype=np.int32)


def kind_of(message: bytes | bytearray) -> int:
    """STEP, ORDER, RESULT or ANSWER."""
    return message[0]


def pack(kind: int, value: Any) -> bytes:
    """An order or an answer."""
    return bytes((kind,)) + pickle.dumps(value, protocol=5)


def unpack(message: bytes | bytearray) -> Any:
    """What `pack` packed."""
    return pickle.loads(memoryview(message)[1:])


class StepWriter:
    """Writes plans. `tables` is the allocator's array; the workers' tables begin as zeros and are as the last message
    made them, so that a row's unchanged blocks never travel again."""

    def __init__(self, tables: Ints) -> None:
        self._tables = tables
        self._told = np.zeros_like(tables)
        self._state = StateWriter()

    def write(self, plan: StepPlan) -> bytes:
        """The plan as it is now: arrays and tables may change afterwards."""
        prefixes = plan.shared_prefixes
        parts: list[Ints | None] = [getattr(plan, name) for name in (*_ARRAYS, *_MAYBE)]
        parts += [np.array(pairs, dtype=np.int32).reshape(-1) for pairs in (plan.swap_out, plan.swap_in, plan.copies)]
        parts += self._changes(plan.changed_rows)
        parts.append(np.array(plan.ended, dtype=np.int32))
        parts += [
            np.concatenate([rows for rows, _ in prefixes]) if prefixes else _NOTHING,
            np.array([len(rows) for rows, _ in prefixes], dtype=np.int32),
            np.array([depth for _, depth in prefixes], dtype=np.int32),
        ]
        head = _STEP.pack(STEP, plan.step, *(-1 if part is None else len(part) for part in parts))
        arrays = [np.ascontiguousarray(part, dtype=np.int32) for part in parts if part is not None]
        return b"".join([head, *arrays, self._state.write(plan.started, plan.prompt_rows)])  # type: ignore[list-item]

    def _changes(self, changed_rows: Ints) -> tuple[Ints, Ints]:
        """Flat places in the tables, and the blocks that stand there from now on."""
        if not len(changed_rows):
            return _NOTHING, _NOTHING
        rows = np.unique(changed_rows)
        now = self._tables[rows]
        where, columns = np.nonzero(now != self._told[rows])
        blocks = now[where, columns]
        self._told[rows[where], columns] = blocks
        entries = rows[where] * np.int32(self._tables.shape[1]) + columns.astype(np.int32)
        return entries, blocks


class StepReader:
    """Reads plans and keeps `tables`, int32 of `shape`, as the engine's were when a plan was written.

    `draws`: whether this rank samples, and hence needs the rows that start.
    """

    def __init__(self, shape: tuple[int, int], draws: bool) -> None:
        self.tables: Ints = np.zeros(shape, dtype=np.int32)
        self._draws = draws
        self._state = StateReader()

    def read(self, message: bytes | bytearray) -> StepPlan:
        """The plan of a message. Its arrays belong to it alone."""
        _, step, *lengths = _STEP.unpack_from(message)
        ends = np.cumsum([max(0, length) for length in lengths]).tolist()
        values = np.frombuffer(message, dtype=np.int32, count=ends[-1], offset=_STEP.size).copy()
        parts: list[Ints] = [values[begin:end] for begin, end in pairwise([0, *ends])]
        num_named = len(_ARRAYS) + len(_MAYBE)
        swap_out, swap_in, copies, entries, blocks, ended, rows, counts, depths = parts[num_named:]
        self.tables.reshape(-1)[entries] = blocks
        changed = np.unique(entries // np.int32(self.tables.shape[1]))
        plan = StepPlan(step=step, changed_rows=changed, **dict(zip(_ARRAYS, parts, strict=False)))  # type: ignore[arg-type]
        plan.swap_out, plan.swap_in = _pairs(SwapPair, swap_out), _pairs(SwapPair, swap_in)
        plan.copies = _pairs(BlockCopy, copies)
        for i, name in enumerate(_MAYBE, start=len(_ARRAYS)):
            setattr(plan, name, parts[i] if lengths[i] >= 0 else None)
        if len(depths):
            plan.shared_prefixes = list(zip(np.split(rows, np.cumsum(counts)[:-1]), depths.tolist(), strict=True))
        if self._draws:
            plan.ended = ended.tolist()
        tail = memoryview(message)[_STEP.size + values.nbytes :]
        if tail:
            plan.started, plan.prompt_rows = self._state.read(tail, self._draws)
        return plan


def write_result(result: StepResult) -> bytes:
    """A step's result; what is rare travels pickled."""
    tokens = np.ascontiguousarray(result.tokens, dtype=np.int32)
    rare = (result.logprobs, result.candidates, result.prompt_logprobs, result.failed)
    tail = pickle.dumps(rare, protocol=5) if any(rare) else b""
    head = _RESULT.pack(RESULT, result.step, result.elapsed_s, *tokens.shape, len(tail))
    num_tokens = np.ascontiguousarray(result.num_tokens, dtype=np.int32)
    return b"".join([head, tokens.data, num_tokens.data, tail])


def read_result(message: bytes | bytearray) -> StepResult:
    """The result that `write_result` wrote."""
    _, step, elapsed_s, draws, width, tail = _RESULT.unpack_from(message)
    values = np.frombuffer(message, dtype=np.int32, count=draws * (width + 1), offset=_RESULT.size).copy()
    tokens, num_tokens = values[: draws * width].reshape(draws, width), values[draws * width :]
    result = StepResult(step, tokens, num_tokens, elapsed_s)
    if tail:
        rare = pickle.loads(memoryview(message)[-tail:])
        result.logprobs, result.candidates, result.prompt_logprobs, result.failed = rare
    return result


def _pairs(kind: Any, flat: Ints) -> list[Any]:
    return [kind(*pair) for pair in flat.reshape(-1, 2).tolist()]
