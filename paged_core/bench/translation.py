"""Translation behind a shared prefix: the same few-shot examples before every sentence, prefix cache on and off."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from paged_core.api.params import SamplingParams
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paged_core.api.loader import Tokenizer
    from paged_core.engine.engine import Engine

_TASK = "Translate English to German.\n"
_SEARCHED = 200
"""Windows of this many first pairs are tried for examples whose length comes nearest to the wanted one."""


@dataclass(frozen=True, slots=True)
class Translations:
    """Prompts that begin with one prefix of `prefix_tokens`, and how many tokens to answer each with."""

    shots: int
    prefix_tokens: int
    prompts: list[list[int]]
    output_tokens: list[int]


def translations(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, shots: int, near: int, sentences: int
) -> Translations:
    """Prompts of `shots` example pairs and one of `sentences` further sentences.

    The examples are the window of neighbouring pairs whose prefix is nearest to `near` tokens; outputs are as long as
    the reference translations. ConfigError when there are too few pairs.
    """
    if len(pairs) <= shots:
        raise ConfigError(f"{len(pairs)} sentence pairs are too few for {shots} examples and a sentence to translate")
    starts = range(min(_SEARCHED, len(pairs) - shots))
    prefixes = {start: _prefix(pairs[start : start + shots]) for start in starts}
    num_tokens = {start: len(tokenizer.encode(text)) for start, text in prefixes.items()}
    best = min(starts, key=lambda start: abs(num_tokens[start] - near))
    rest = [*pairs[best + shots :], *pairs[:best]][:sentences]
    return Translations(
        shots=shots,
        prefix_tokens=num_tokens[best],
        prompts=[tokenizer.encode(f"{prefixes[best]}English: {english}\nGerman:") for english, _ in rest],
        output_tokens=[len(tokenizer.encode(f" {german}\n", add_special_tokens=False)) for _, german in rest],
    )


def _prefix(examples: Sequence[tuple[str, str]]) -> str:
    return _TASK + "".join(f"English: {english}\nGerman: {german}\n" for english, german in examples)


@dataclass(slots=True)
class Translator:
    """Runs the same requests again and again on one engine; every run starts with a cold cache of its own salt."""

    engine: Engine
    work: Translations
    computed: int = 0  # tokens put through the model in the last run
    _salts: Iterator[int] = field(default_factory=count)

    def run(self) -> None:
        """The first sentence writes the prefix, then all others come at once; greedy, as long as the references."""
        salt = f"{self.work.shots}-shot-{next(self._salts)}"
        before = self.engine.stats()
        first, *others = zip(self.work.prompts, self.work.output_tokens, strict=True)
        self._add(f"{salt}-0", *first, salt)
        while self.engine.stats().num_generated == before.num_generated:
            self.engine.step()
        for i, (prompt, length) in enumerate(others, start=1):
            self._add(f"{salt}-{i}", prompt, length, salt)
        while self.engine.has_unfinished:
            self.engine.step()
        self.computed = self.engine.stats().num_computed - before.num_computed

    def _add(self, request_id: str, prompt: list[int], length: int, salt: str) -> None:
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        self.engine.add_request(request_id, prompt, params, cache_salt=salt)
