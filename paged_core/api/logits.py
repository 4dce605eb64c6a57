"""LogitsProcessor: one request's own say over its logits, next to them, before a token is chosen.

Not a plugin kind: an object that a caller puts into `SamplingParams.logits_processors`, or that the engine makes of a
grammar. Processors run first, in the order given, on float32 logits; allowed tokens, bad words, min_tokens, bias and
penalties follow, so that a processor never sees a penalised logit. Log-probabilities of the raw logits are not touched.

The object in the parameters is a template and is never changed: the sampler takes a `fork` for every branch and tells
it the tokens of its branch. What it does may depend on nothing else (law 16): a restarted branch (beam search,
recompute) is a new fork that is told the whole output again.

Where steps run in other processes the template travels there by pickle. An object in it whose class says
`travels_once = True` is sent when it is first met and shared by all templates that hold it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paged_core.api.params import SamplingParams


class LogitsProcessor(ABC):
    """Masks or changes the logits of one sequence. An exception fails its request and nobody else's."""

    def check(self, params: SamplingParams, vocab_size: int) -> None:
        """Raise RequestError when this cannot compose with `params` or a vocabulary of this size. Called once."""

    def fork(self) -> LogitsProcessor:
        """A processor of its own for one branch, as if nothing had been accepted. The default copies the template."""
        return copy.deepcopy(self)

    @abstractmethod
    def apply(self, logits: Tensor) -> None:
        """Change `logits` [vocab] float32 in place; -inf forbids a token."""

    @classmethod
    def apply_rows(cls, processors: Sequence[LogitsProcessor], logits: Tensor, rows: Sequence[int]) -> None:
        """The fast path: `processors[i]`, all of this class, changes `logits[rows[i]]` [draws, vocab]. Override to
        work on all of them at once; the result must be that of `apply`, row by row."""
        for processor, row in zip(processors, rows, strict=True):
            processor.apply(logits[row])

    def accept(self, tokens: Sequence[int]) -> None:
        """`tokens` became output of this branch, in this order: one after a draw, many after a restart."""

    def forced(self) -> Sequence[int]:
        """Tokens that must follow now whatever the logits say; the engine appends them without computing a draw, where
        the parameters allow it (`SamplingParams.takes_forced`). Asked after `accept`, told by `accept`. They may depend
        on the tokens accepted and on nothing else, and hold no end-of-sequence token."""
        return ()
