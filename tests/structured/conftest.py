from __future__ import annotations

import pytest

from paged_core.structured.compiler import GrammarCompiler
from paged_core.structured.llguidance_backend import LLGuidance
from paged_core.structured.vocabulary import vocabulary_of
from paged_core.structured.xgrammar_backend import XGrammar
from paged_core.testing.tokenizer import ByteTokenizer

VOCAB_SIZE = 333  # more than the tokenizer has, and no multiple of 32


@pytest.fixture(scope="session")
def vocabulary():
    return vocabulary_of(ByteTokenizer(), VOCAB_SIZE)


@pytest.fixture(scope="session")
def backends(vocabulary):
    return {"xgrammar": XGrammar(vocabulary), "llguidance": LLGuidance(vocabulary)}


@pytest.fixture
def compiler_of(vocabulary):
    """Build a GrammarCompiler; it is closed at the end of the test."""
    made = []

    def build(limits):
        made.append(GrammarCompiler(vocabulary, limits))
        return made[-1]

    yield build
    for compiler in made:
        compiler.close()
