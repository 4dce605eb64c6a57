"""What a backend is: Backend compiles, CompiledGrammar is shared by requests, Matcher follows one branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paged_core.structured.spec import GrammarSpec

JSON_OBJECT = '{"type": "object"}'
MAX_WHITESPACE = 16
"""Most blanks and line breaks in a row inside JSON: an end for a model that writes nothing else. xgrammar spends 130 KB
of compiled grammar on each."""


class Matcher(Protocol):
    """Follows the tokens of one branch. An end-of-sequence token is accepted where the sentence may end."""

    def fill(self, words: NDArray[np.int32]) -> None:
        """Write the allowed tokens as bits, token t = bit t % 32 of `words[t // 32]`; `words` is contiguous, and all of
        it is written. Raises GrammarError when the grammar costs too much here."""
        ...

    def accept(self, token: int) -> bool:
        """Take one more token; False when the grammar does not allow it."""
        ...

    def forced(self) -> list[int]:
        """Tokens of which the grammar leaves no choice from here, in the order of the text; often none."""
        ...


class CompiledGrammar(Protocol):
    """A grammar over one vocabulary. Immutable, shared by all branches of all requests that want it."""

    num_bytes: int

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a sentence."""
        ...


class Backend(Protocol):
    """One grammar library over one vocabulary. Built in the compiling process and again in the engine's."""

    def compile(self, spec: GrammarSpec) -> bytes:
        """The compiled grammar as bytes, its first mask tried out. Raises GrammarError. May take long or crash."""
        ...

    def load(self, spec: GrammarSpec, payload: bytes) -> CompiledGrammar:
        """The grammar of `payload`, which came from `compile` of the same spec."""
        ...
