"""The grammar libraries by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.structured.grammar import Backend
    from paged_core.structured.vocabulary import Vocabulary


def open_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """The backend `name` over `vocabulary`: "xgrammar" or "llguidance". Importing it may take seconds."""
    if name == "xgrammar":
        from paged_core.structured.xgrammar_backend import XGrammar

        return XGrammar(vocabulary)
    from paged_core.structured.llguidance_backend import LLGuidance

    return LLGuidance(vocabulary)
