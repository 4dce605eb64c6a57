"""SamplerBench: a sampler under test with a short way to start rows and to sample them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paged_core.api.batch import RowStart
from paged_core.api.params import SamplingParams
from paged_core.api.sampler import SamplerNeed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from paged_conformance.candidate import Candidate
    from paged_core.api.sampler import LogprobsMode, Sampler, Samples

VOCAB = 32
MAX_ROWS = 64
EOS = 7


@dataclass(slots=True)
class Row:
    """One sequence: its parameters, seed and branch, its prompt and the output so far."""

    params: SamplingParams
    seed: int = 0
    branch: int = 0
    prompt: list[int] = field(default_factory=lambda: [0])
    output: list[int] = field(default_factory=list)

    def copy(self) -> Row:
        """The same row with token lists of its own."""
        return Row(self.params, self.seed, self.branch, list(self.prompt), list(self.output))


def params(bad_words: Sequence[Sequence[int]] = (), **values: Any) -> SamplingParams:
    """SamplingParams as the engine hands them over: bad words as token ids."""
    sampling = SamplingParams(**{"max_tokens": None, **values})
    sampling.bad_words_token_ids = [list(words) for words in bad_words]
    return sampling


def spread(seed: int = 0, vocab: int = VOCAB, step: float = 0.1) -> NDArray[np.float32]:
    """Logits in random order that lie `step` apart: no ties, and the best is known."""
    values = (np.arange(vocab) - vocab / 2) * step
    return np.random.default_rng(seed).permutation(values).astype(np.float32)


class SamplerBench:
    """A fresh sampler of the candidate over 32 tokens or more, end of sequence 7. Rows keep their own history."""

    def __init__(self, candidate: Candidate, vocab: int = VOCAB, mode: LogprobsMode = "raw_logprobs") -> None:
        self.device = candidate.device
        self.rows: dict[int, Row] = {}
        need = SamplerNeed(candidate.device, vocab, MAX_ROWS, (EOS,), logprobs_mode=mode)
        self.sampler: Sampler = candidate.create(need)

    def start(self, number: int, row: Row) -> Row:
        """Begin, or begin anew, with table row `number`."""
        self.rows[number] = row
        prompt, output = (np.array(part, dtype=np.int32) for part in (row.prompt, row.output))
        self.sampler.start(RowStart(number, row.params, row.seed, row.branch, prompt, output))
        return row

    def sample(self, logits: Mapping[int, Any], candidates: Mapping[int, int] | None = None) -> Samples:
        """Sample table rows in the order given, each at the position that its history says."""
        table = torch.stack([torch.as_tensor(values, dtype=torch.float32) for values in logits.values()])
        return self.sample_tensor(list(logits), table, candidates)

    def sample_tensor(
        self, numbers: Sequence[int], logits: torch.Tensor, candidates: Mapping[int, int] | None = None
    ) -> Samples:
        """As `sample`, from a tensor [rows, vocab] of any strides and float type."""
        positions = [len(self.rows[n].prompt) + len(self.rows[n].output) for n in numbers]
        wanted = None if candidates is None else np.array([candidates.get(n, 0) for n in numbers], dtype=np.int32)
        result = self.sampler.sample(
            logits.to(self.device), np.array(numbers, dtype=np.int32), np.array(positions, dtype=np.int32), wanted
        )
        tokens = np.asarray(result.tokens)
        assert tokens.shape == (len(numbers),), f"tokens have shape {tokens.shape}; one a draw: {len(numbers)}"
        for draw, number in enumerate(numbers):
            if draw not in result.failed:
                self.rows[number].output += [int(tokens[draw]), *result.forced.get(draw, ())]
        return result

    def run(self, number: int, logits: Any, steps: int) -> list[int]:
        """`steps` tokens of one row, always from the same logits."""
        return [int(self.sample({number: logits}).tokens[0]) for _ in range(steps)]
