"""`bench quality`: what narrower weights, keys and values cost, on real text: perplexity, best tokens, greedy answers.

Every precision reads the same windows of text and answers the same questions; float32 is what the others are held
against. A window begins without context, and its first token is given, not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.params import SamplingParams
from paged_core.bench.report import Column, Table
from paged_core.engine.hardware import cpu_has_bf16
from paged_core.engine.llm import LLM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from paged_core.api.output import RequestOutput
    from paged_core.bench.data import Texts

_LEAST_WINDOW = 32


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a window, most tokens of a text, questions asked, and tokens of each answer."""

    window: int = 512
    text_tokens: int = 8192
    prompts: int = 50
    answer: int = 24


QUICK = Size(window=64, text_tokens=128, prompts=4, answer=8)


@dataclass(frozen=True, slots=True)
class Precision:
    """A name, and the settings that make it."""

    name: str
    settings: Mapping[str, Any]


def precisions() -> tuple[Precision, ...]:
    """float32 first, bfloat16, and int8 weights with the activations that `auto` would take on this processor.

    Keys and values have the type of the activations, or are uint8 where the name says so.
    """
    activations = "bfloat16" if cpu_has_bf16() else "float32"
    int8, codes = {"dtype": activations, "quantization": "int8"}, {"kv_dtype": "uint8"}
    return (
        Precision("float32", {"dtype": "float32"}),
        Precision("float32, KV uint8", {"dtype": "float32", **codes}),
        Precision("bfloat16", {"dtype": "bfloat16"}),
        Precision(f"int8, {activations} activations", int8),
        Precision(f"int8, {activations} activations, KV uint8", int8 | codes),
    )


@dataclass(frozen=True, slots=True)
class Scores:
    """What one precision said: by text, each token's log-probability and each position's best token; the answers."""

    logprobs: Mapping[str, NDArray[np.float64]]
    best: Mapping[str, NDArray[np.int64]]
    answers: Sequence[Sequence[int]]

    def perplexity(self, text: str) -> float:
        """exp of the mean negative log-probability of a token."""
        return float(np.exp(-self.logprobs[text].mean()))


def windows(pages: Sequence[str], encode: Callable[[str], list[int]], size: Size) -> list[list[int]]:
    """Ids of windows within pages, at most `size.text_tokens` in all. Scraps of a few tokens are left out."""
    found: list[list[int]] = []
    left = size.text_tokens
    for page in pages:
        ids = encode(page)
        for begin in range(0, len(ids), size.window):
            window = ids[begin : begin + min(size.window, left)]
            if len(window) >= min(_LEAST_WINDOW, size.window):
                found.append(window)
                left -= len(window)
            if left < _LEAST_WINDOW:
                return found
    return found


def score(llm: LLM, texts: Texts, size: Size) -> Scores:
    """Read every text and answer every question. The tokens of both are the model's own."""
    logprobs, best = dict[str, "NDArray[np.float64]"](), dict[str, "NDArray[np.int64]"]()
    read = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    for name, pages in texts.pages.items():
        outputs = _generate(llm, windows(pages, llm.tokenizer.encode, size), read)
        positions = [position for output in outputs for position in _predicted(output)]
        logprobs[name] = np.array([chosen for chosen, _ in positions])
        best[name] = np.array([token for _, token in positions])
    write = SamplingParams(temperature=0, max_tokens=size.answer, ignore_eos=True, detokenize=False)
    prompts = [llm.tokenizer.encode(question) for question in texts.questions[: size.prompts]]
    return Scores(logprobs, best, [output.outputs[0].token_ids for output in _generate(llm, prompts, write)])


def _generate(llm: LLM, prompts: Sequence[list[int]], params: SamplingParams) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def _predicted(output: RequestOutput) -> list[tuple[float, int]]:
    """The token's log-probability and the best token, of every position but the first."""
    assert output.prompt_logprobs is not None
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    found = []
    for token, position in pairs:
        assert position is not None
        best = next(candidate for candidate, one in position.items() if one.rank == 1)
        found.append((position[token].logprob, best))
    return found


def quality_tables(
    settings: Mapping[str, Any], texts: Texts, size: Size, say: Callable[[str], None]
) -> tuple[list[Table], dict[str, Any]]:
    """Both tables, and the facts of the run for its conditions. Loads the model once a precision, one at a time."""
    scores, facts = dict[str, Scores](), dict[str, Any]()
    for precision in precisions():
        say(precision.name)
        with LLM(**(dict(settings, prefix_cache=False, kv_dtype="auto") | dict(precision.settings))) as llm:
            scores[precision.name] = score(llm, texts, size)
            facts |= {"model": llm.engine.facts.model, "plugins": " ".join(llm.engine.facts.plugins.values())}
    return [_perplexity_table(scores, size), _answers_table(scores, size)], facts


def _perplexity_table(scores: Mapping[str, Scores], size: Size) -> Table:
    columns = (
        Column("text", "text"),
        Column("weights", "weights"),
        Column("tokens", "tokens", ","),
        Column("perplexity", "perplexity", ".3f"),
        Column("over_float32", "over float32", "+.2%"),
        Column("same_best", "same best token", ".1%"),
        Column("drift", "mean |d logprob|", ".4f"),
    )
    table = Table("Perplexity", columns)
    exact = next(iter(scores.values()))
    for text in exact.logprobs:
        for name, one in scores.items():
            drift = np.abs(one.logprobs[text] - exact.logprobs[text]).mean()
            same = (one.best[text] == exact.best[text]).mean()
            perplexity = one.perplexity(text)
            row = (text, name, len(one.logprobs[text]), perplexity, perplexity / exact.perplexity(text) - 1)
            table.add(*row, float(same), float(drift))
    table.notes += [
        f"Windows of {size.window} tokens without context before them, at most {size.text_tokens:,} tokens of a text.",
        "The KV cache has the element type of the activations unless the name says uint8.",
    ]
    return table


def _answers_table(scores: Mapping[str, Scores], size: Size) -> Table:
    columns = (
        Column("weights", "weights"),
        Column("prompts", "prompts"),
        Column("same", "same answers"),
        Column("same_share", "", ".0%"),
        Column("agreed", "tokens before a difference", ".1f"),
    )
    table = Table("Greedy answers that equal those of float32", columns)
    exact, *others = scores.items()
    for name, one in others:
        agreed = [_agreed(mine, its) for mine, its in zip(one.answers, exact[1].answers, strict=True)]
        same = sum(count == size.answer for count in agreed)
        table.add(name, len(agreed), same, same / len(agreed), float(np.mean(agreed)))
    table.notes.append(f"{size.answer} tokens each, bare questions without a chat template, end of sequence ignored.")
    return table


def _agreed(mine: Sequence[int], its: Sequence[int]) -> int:
    """Tokens before the first difference."""
    pairs = zip(mine, its, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(its))
