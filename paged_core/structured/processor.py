"""GrammarProcessor: a compiled grammar as the first LogitsProcessor of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.logits import LogitsProcessor
from paged_core.structured.spec import GrammarError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from paged_core.structured.grammar import CompiledGrammar


class GrammarProcessor(LogitsProcessor):
    """Forbids every token that the grammar does not allow next. A template until forked; each fork follows one branch.

    A pure function of the grammar and the tokens accepted: neither batch nor preemption can change it (laws 15, 16).
    """

    def __init__(self, grammar: CompiledGrammar, *, jump: bool = False) -> None:
        self._grammar, self._jump = grammar, jump
        self._matcher = grammar.matcher()
        self._num_accepted = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process a template travels as its grammar."""
        return GrammarProcessor._template, (self._grammar, self._jump)

    @classmethod
    def _template(cls, grammar: CompiledGrammar, jump: bool) -> GrammarProcessor:
        return cls(grammar, jump=jump)

    def fork(self) -> GrammarProcessor:
        """A processor at the beginning of the same grammar."""
        return GrammarProcessor(self._grammar, jump=self._jump)

    def apply(self, logits: Tensor) -> None:
        """Set every forbidden token of `logits` [vocab] to -inf. Raises GrammarError when the grammar gives up."""
        self.apply_rows([self], logits.unsqueeze(0), [0])

    @classmethod
    def apply_rows(cls, processors: Sequence[LogitsProcessor], logits: Tensor, rows: Sequence[int]) -> None:
        """One buffer of bits for all rows, unpacked at once; each row is masked in place."""
        import torch

        vocab = logits.shape[1]
        words: NDArray[np.int32] = np.empty((len(processors), -(-vocab // 32)), dtype=np.int32)
        for processor, bits in zip(processors, words, strict=True):
            assert isinstance(processor, GrammarProcessor)
            processor._matcher.fill(bits)
        forbidden = np.unpackbits(np.invert(words).view(np.uint8), axis=1, count=vocab, bitorder="little")
        masks = torch.from_numpy(forbidden.view(bool)).to(logits.device)
        for mask, row in zip(masks, rows, strict=True):
            logits[row].masked_fill_(mask, -torch.inf)

    def accept(self, tokens: Sequence[int]) -> None:
        """Follow the branch. Raises GrammarError for a token that the grammar does not allow (case T03)."""
        for token in tokens:
            if not self._matcher.accept(int(token)):
                raise GrammarError(f"the grammar does not allow token {token} as number {self._num_accepted + 1}")
            self._num_accepted += 1

    def forced(self) -> Sequence[int]:
        """What the grammar leaves no choice of, if jumping is on."""
        return self._matcher.forced() if self._jump else ()
