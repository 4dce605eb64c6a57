"""Translation behind a shared prefix: which examples, and what a cold cache spares."""

from __future__ import annotations

import dataclasses

import pytest

from paged_core.bench.stub import StubExecutor, stub_engine, stub_facts
from paged_core.bench.translation import Translations, Translator, translations
from paged_core.errors import ConfigError
from paged_core.testing.tokenizer import ByteTokenizer

PAIRS = [("a" * length, "b" * length) for length in (5, 50, 20, 8, 30, 11)]


def test_the_example_nearest_to_the_wanted_length_is_taken() -> None:
    tokenizer = ByteTokenizer()
    work = translations(PAIRS, tokenizer, shots=1, near=29 + 19 + 2 * 20, sentences=3)
    assert work.prefix_tokens == len("Translate English to German.\nEnglish: \nGerman: \n") + 2 * 20
    assert len(work.prompts) == 3
    texts = [tokenizer.decode(prompt) for prompt in work.prompts]
    assert all(text.startswith(f"Translate English to German.\nEnglish: {'a' * 20}\nGerman: ") for text in texts)
    assert [text.rsplit("English: ", 1)[1] for text in texts] == [f"{'a' * n}\nGerman:" for n in (8, 30, 11)]
    assert work.output_tokens == [8 + 2, 30 + 2, 11 + 2]


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 sentence pairs are too few for 5"):
        translations(PAIRS[:2], ByteTokenizer(), shots=5, near=100, sentences=3)


@pytest.mark.parametrize("cache", [True, False])
def test_every_run_starts_cold_and_computes_the_prefix_once_with_the_cache(cache: bool) -> None:
    facts = dataclasses.replace(stub_facts(200, 256, 16), prefix_cache=cache)
    work = Translations(1, 32, [[7] * 32 + [i] * 5 for i in range(6)], [4] * 6)
    run = Translator(stub_engine(facts, StubExecutor()), work)
    all_tokens = 6 * (37 + 4 - 1)
    for _ in range(2):
        run.run()
        assert run.computed == (all_tokens - 5 * 32 if cache else all_tokens)
