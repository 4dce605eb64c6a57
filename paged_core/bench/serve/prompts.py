"""Prompts: text of as many tokens as asked, made of common words, each one token where the server can confirm it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_core.bench.serve.client import Client
    from paged_core.workload.traces import Arrival

_TEXT = """
about above after again air all along also always and animal another answer any ask away back because been before
began being below best better between big black book both boy bring build but call came can car carry change children
city close cold come could country cut day did different does done door down draw each early earth eat end enough even
every example eye face family far farm father feet few find fire first fish five follow food form found four from full
game gave get girl give going good got great green group grow half hand hard has have head hear help her here high him
his home horse house how idea into just keep kind king know land large last late learn left let letter life light line
list little live long look made make man many mark may mean men might mile money more morning most mother mountain
move much music must name near need never new next night north note nothing now number off often old once one only
open order other our out over own page paper part people picture place plan plant play point power problem read real
red rest right river road rock room run said same saw say school science sea second see seem sentence set several ship
short should show side simple since small snow some song soon south space spell stand star start state step still stop
story street strong study such sun sure table take talk tell than that them then there these they thing think this
those thought three through time today together told too took top town travel tree true try turn two under until use
very voice walk want war warm was watch water way week well went were west what wheel when where which while white who
whole why wind with without wood word work world would write year you young your
"""
WORDS = tuple(_TEXT.split())
_FEWEST = 32
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Prompts:
    """How to write a prompt of n tokens.

    words           to choose from
    tokens_a_word   as the server counts them
    overhead        tokens that the server adds: a begin token, a chat template
    source          how the two were found, to be printed
    shared_tokens   tokens with which all prompts begin alike
    salt            another one makes other texts of the same names
    """

    words: tuple[str, ...] = WORDS
    tokens_a_word: float = 1.0
    overhead: int = 0
    source: str = "estimated: one token a word, the server's /tokenize does not answer"
    shared_tokens: int = 0
    salt: str = ""

    def text(self, asked: Arrival, name: str) -> str:
        """A prompt for `asked`, the same one for the same `name` and salt. At least one word.

        Prompts with the same first blocks begin alike, block by block; without blocks only the shared part is alike.
        """
        total = max(1, round((asked.prompt_tokens - self.overhead) / self.tokens_a_word))
        words: list[str] = []
        for part, tokens in self._parts(asked, name):
            size = min(max(1, round(tokens / self.tokens_a_word)), total - len(words))
            words += Random(f"{self.salt}/{part}").choices(self.words, k=size)
            if len(words) == total:
                break
        return " ".join(words)

    def _parts(self, asked: Arrival, name: str) -> Iterator[tuple[str, int]]:
        if self.shared_tokens:
            yield "shared", self.shared_tokens
        for block in asked.blocks:
            yield f"block {block}", asked.block_tokens
        yield name, asked.prompt_tokens


async def calibrate(client: Client, model: str, endpoint: str, salt: str, shared_tokens: int) -> Prompts:
    """Ask the server's /tokenize, vLLM's or llama.cpp's, what words cost; without one, an estimate that says so.

    Prompts are exact where at least a few dozen words are one token each, with and without a space before them.
    """
    estimate = Prompts(salt=salt, shared_tokens=shared_tokens)

    async def count(**what: Any) -> int | None:
        answer = await client.json_of("POST", "/tokenize", {"model": model, **what})
        tokens = answer.get("tokens") if answer else None
        return len(tokens) if isinstance(tokens, list) else None

    async def plain(text: str) -> int:
        found = await count(prompt=text, content=text, add_special_tokens=False, add_special=False)
        if found is None:
            raise ConfigError("the server's /tokenize stopped answering")
        return found

    every = " ".join(WORDS)
    if not await count(prompt=every, content=every, add_special_tokens=False, add_special=False):
        return estimate
    one = WORDS[0]
    if endpoint == "chat":
        around = await count(messages=[{"role": "user", "content": one}])
    else:
        around = await count(prompt=one, content=one, add_special_tokens=True, add_special=True)
    overhead = max(0, (around or 0) - await plain(one))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def single(word: str) -> bool:
        async with gate:
            return await plain(f"{word} {word}") == 2

    good = [word for word, fits in zip(WORDS, await asyncio.gather(*map(single, WORDS)), strict=True) if fits]
    if len(good) >= _FEWEST:
        source = f"words of one token each by the server's /tokenize, and {overhead} tokens around them"
        return replace(estimate, words=tuple(good), overhead=overhead, source=source)
    mean = await plain(every) / len(WORDS)
    source = f"about: words of {mean:.2f} tokens each by the server's /tokenize, and {overhead} tokens around them"
    return replace(estimate, tokens_a_word=mean, overhead=overhead, source=source)
