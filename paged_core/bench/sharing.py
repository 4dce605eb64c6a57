"""`bench sharing`: what sharing of blocks saves and gains, next to the figures of the PagedAttention paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.api.params import SamplingParams
from paged_core.bench.divergence import BeamStub, sorted_logprobs
from paged_core.bench.report import Column, Table
from paged_core.bench.saving import OPT_13B_BLOCKS, Service, prompts_saving, service_saving
from paged_core.bench.stub import stub_engine, stub_facts
from paged_core.bench.timing import alternate, ratio
from paged_core.bench.translation import Translator, translations
from paged_core.engine.llm import LLM
from paged_core.workload.lengths import Lengths, alpaca, sharegpt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from paged_core.api.loader import Tokenizer
    from paged_core.bench.data import Data
    from paged_core.bench.saving import Saving
    from paged_core.bench.translation import Translations
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine

WIDTHS = (2, 4, 6)
Work = list[tuple[list[int], int]]
"""Ids of each prompt, and how many tokens to answer it with."""
PAPER_SAMPLING = {
    "ShareGPT-like": {2: 0.162, 6: 0.305},
    "Alpaca-like": {2: 0.0609, 4: 0.0853, 6: 0.0979},
}
PAPER_BEAMS = {
    "ShareGPT-like": {2: 0.443, 6: 0.663},
    "Alpaca-like": {2: 0.3756, 4: 0.5313, 6: 0.5516},
}
PAPER_PREFIX = {1: (80, 1.67), 5: (341, 3.58)}  # shots -> prefix tokens, throughput over Orca (Oracle)
_SHAREGPT_RATE, _ALPACA_RATE = 2.0, 30.0  # requests a second in the paper's figure

_COLUMNS = (
    Column("prompts", "prompts"),
    Column("mode", "mode"),
    Column("width", "width"),
    Column("prompt_tokens", "prompt", ".0f"),
    Column("output_tokens", "output", ".0f"),
    Column("requests", "running", ".1f"),
    Column("saved", "saved", ".1%"),
    Column("paper", "paper", ".1%"),
    Column("bound", "bound", ".0%"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much to run. `minutes` are virtual ones, of arrivals; the rest counts requests and rounds."""

    minutes: float = 20.0
    prompts: int = 48
    sentences: int = 32
    rounds: int = 3
    chat_tokens: int = 128
    requests: int = 48  # of drawn beams
    seed: int = 0
    clock: str = "wall"  # of the rounds; "cpu" for one thread on a busy machine


QUICK = Size(minutes=1.0, prompts=4, sentences=6, rounds=1, chat_tokens=24, requests=4)


def lengths_table(measured: Sequence[Lengths], size: Size, say: Callable[[str], None]) -> Table:
    """Saving of n samples per prompt under the paper's lengths, rates and pool, and under `measured` lengths."""
    table = Table("Memory saved by parallel sampling, by lengths (no model, OPT-13B's pool and step times)", _COLUMNS)
    for service in services(measured, size):
        for width in WIDTHS:
            say(f"{service.lengths.name}, n = {width}")
            saving = service_saving(service, samples(width), np.random.default_rng(size.seed))
            paper = PAPER_SAMPLING.get(service.lengths.name, {}).get(width)
            means = service.lengths.means
            row = (service.lengths.name, "sample", width, *means, saving.mean_requests, saving.share, paper)
            table.add(*row, (width - 1) / width)
    table.notes += [
        "Saved: blocks that sharing spares over blocks without sharing, summed over steps. Bound: everything shared.",
        f"983 blocks of 16, {_SHAREGPT_RATE:g} requests/s (Alpaca-like {_ALPACA_RATE:g}), Poisson arrivals,",
        f"{size.minutes:g} virtual minutes, end of sequence ignored, no prefix cache. No n = 4 is stated for ShareGPT.",
    ]
    return table


def services(measured: Sequence[Lengths], size: Size) -> list[Service]:
    """The paper's two distributions of lengths at its rates, then `measured` ones."""
    random, seconds = np.random.default_rng(size.seed), size.minutes * 60
    made: list[tuple[Callable[[int, Generator], Lengths], float]] = [
        (sharegpt, _SHAREGPT_RATE),
        (alpaca, _ALPACA_RATE),
    ]
    drawn = [Service(make(int(rate * seconds * 1.3) + 50, random), rate, seconds) for make, rate in made]
    return drawn + [Service(lengths, _SHAREGPT_RATE, seconds) for lengths in measured]


def samples(width: int) -> Callable[[int], SamplingParams]:
    """Parameters, by output length, of a request that draws `width` answers to the full length."""
    return lambda output: SamplingParams(n=width, max_tokens=output, ignore_eos=True, detokenize=False)


def _beams(width: int) -> Callable[[int], SamplingParams]:
    return lambda output: SamplingParams(
        n=width, use_beam_search=True, beam_width=width, temperature=0, max_tokens=output, ignore_eos=True
    )


MODES: dict[str, Callable[[int], Callable[[int], SamplingParams]]] = {"sample": samples, "beam": _beams}
PAPER = {"sample": PAPER_SAMPLING, "beam": PAPER_BEAMS}
_NEAREST = {"tasks": "Alpaca-like", "chat": "ShareGPT-like"}


def prompts_tables(
    data: Data, settings: Mapping[str, Any], size: Size, say: Callable[[str], None]
) -> tuple[Table, Table]:
    """Saving of samples and beams that a real model grows over real prompts, and of such beams under other lengths."""
    with LLM(**dict(settings, prefix_cache=False, seed=size.seed)) as llm:
        work = _real_work(data, llm.tokenizer, size)
        grown = _grown_table(llm.engine, work, size, say)
        grown.notes.append(_model(llm.engine.facts))
        say("collecting log-probabilities")
        params = SamplingParams(temperature=0, max_tokens=size.chat_tokens, ignore_eos=True, logprobs=WIDTHS[-1])
        answers = llm.generate([prompt for prompt, _ in work["chat"]], params, use_tqdm=False)
    return grown, _drawn_table(sorted_logprobs(answers, WIDTHS[-1]), work, size, say)


def _grown_table(engine: Engine, work: Mapping[str, Work], size: Size, say: Callable[[str], None]) -> Table:
    table = Table("Memory saved on real prompts, by a real model", _COLUMNS)
    for name, requests in work.items():
        for mode, width in [(mode, width) for mode in MODES for width in WIDTHS]:
            say(f"{name}, {mode} {width}")
            saving = _saving(engine, requests, MODES[mode](width))
            paper = PAPER[mode][_NEAREST[name]].get(width)
            table.add(name, mode, width, *_means(requests), saving.mean_requests, saving.share, paper, 1 - 1 / width)
    table.notes += [
        f"tasks: the first {size.prompts} short instructions, answers as long as their references; paper: Alpaca.",
        f"chat: the first {size.prompts} opening questions, {size.chat_tokens} tokens each; paper: ShareGPT (longer).",
        "Another model than the paper's OPT-13B: its beams part at other places. Bare prompts without a chat template,",
        "all queued at once, end of sequence ignored, no prefix cache; samples drawn at temperature 1.",
    ]
    return table


def _saving(engine: Engine, requests: Work, params: Callable[[int], SamplingParams]) -> Saving:
    return prompts_saving(engine, [prompt for prompt, _ in requests], [params(output) for _, output in requests])


def _means(requests: Work) -> tuple[float, float]:
    return float(np.mean([len(prompt) for prompt, _ in requests])), float(np.mean([output for _, output in requests]))


def _real_work(data: Data, tokenizer: Tokenizer, size: Size) -> dict[str, Work]:
    """Requests by the name of the workload."""
    encode = tokenizer.encode
    tasks = [(encode(prompt), len(encode(answer, add_special_tokens=False))) for prompt, answer in data.tasks]
    chat = [(encode(question), size.chat_tokens) for question in data.questions]
    return {"tasks": tasks[: size.prompts], "chat": chat[: size.prompts]}


def _drawn_table(
    logprobs: NDArray[np.float32], work: Mapping[str, Work], size: Size, say: Callable[[str], None]
) -> Table:
    """Beams drawn from measured log-probabilities: over the same requests, as a check, and the paper's lengths."""
    table = Table("Memory saved by beams drawn from the model's log-probabilities", _COLUMNS)
    random = np.random.default_rng(size.seed)
    paper_lengths = {
        "Alpaca-like": _blank(alpaca(size.requests, random)),
        "ShareGPT-like": _blank(sharegpt(size.requests, random)),
    }
    facts = stub_facts(OPT_13B_BLOCKS, max_model_len=2048, max_num_seqs=1024)
    same = {name: [([1] * len(prompt), output) for prompt, output in requests] for name, requests in work.items()}
    for name, requests in (same | paper_lengths).items():
        for width in WIDTHS:
            say(f"{name}, drawn beams {width}")
            engine = stub_engine(facts, BeamStub(logprobs, size.seed))
            saving = _saving(engine, requests, _beams(width))
            paper = PAPER_BEAMS[_NEAREST.get(name, name)].get(width)
            table.add(name, "beam", width, *_means(requests), saving.mean_requests, saving.share, paper, 1 - 1 / width)
    table.notes += [
        f"No model: every beam draws one of {len(logprobs):,} positions of the model's greedy answers.",
        "The first rows repeat the requests of the table above, as a check. Then the paper's lengths:",
        f"{size.requests} requests of each, all queued, in the pool of OPT-13B ({OPT_13B_BLOCKS} blocks).",
    ]
    return table


def _model(facts: EngineConfig) -> str:
    plugins = " ".join(facts.plugins.values())
    return f"{facts.model}, {facts.dtype}, KV {facts.kv_dtype}, block size {facts.block_size}; {plugins}"


def _blank(lengths: Lengths) -> Work:
    return [([1] * int(prompt), int(output)) for prompt, output in lengths.pairs]


def prefix_table(data: Data, settings: Mapping[str, Any], size: Size, say: Callable[[str], None]) -> Table:
    """Time of the same translations with the prefix cache on and off, in turns."""
    columns = (
        Column("shots", "shots"),
        Column("prefix_tokens", "prefix"),
        Column("sentences", "sentences"),
        Column("tokens_off", "computed off", ","),
        Column("tokens_on", "computed on", ","),
        Column("seconds_off", "off s", ".2f"),
        Column("seconds_on", "on s", ".2f"),
        Column("requests_per_s", "on req/s", ".2f"),
        Column("ratio", "on / off", ".2f"),
        Column("spread", "spread", ".0%"),
        Column("paper", "paper", ".2f"),
    )
    table = Table("Throughput of translation behind a shared prefix, prefix cache on and off", columns)
    with LLM(**dict(settings, prefix_cache=True)) as on, LLM(**dict(settings, prefix_cache=False)) as off:
        facts = on.engine.facts
        for shots, (near, paper) in PAPER_PREFIX.items():
            work = translations(data.pairs, on.tokenizer, shots, near, size.sentences)
            table.add(*_prefix_row(work, {"on": on.engine, "off": off.engine}, size, say), paper)
    table.notes += [
        f"Medians of {size.rounds} rounds ({size.clock} time), on and off in turns, each from cold: the first sentence",
        "writes the prefix, then all others are queued. Greedy, outputs as long as the references. Spread: of the",
        "ratio, largest less least over the median. Paper: vLLM with sharing over Orca (Oracle), another engine with",
        "another memory layout; here this engine over itself, which spares computing the prefix again (and reading it",
        "again, where attention shares it).",
        _model(facts),
    ]
    return table


def _prefix_row(
    work: Translations, engines: Mapping[str, Engine], size: Size, say: Callable[[str], None]
) -> tuple[int | float, ...]:
    runs = {name: Translator(engine, work) for name, engine in engines.items()}
    for run in runs.values():
        run.run()  # first compilations and first touches are nobody's time
    times = alternate({name: run.run for name, run in runs.items()}, size.rounds, say, size.clock)
    gain, sentences = ratio(times["off"], times["on"]), len(work.prompts)
    seconds = (times["off"].median, times["on"].median, sentences / times["on"].median)
    computed = (runs["off"].computed, runs["on"].computed)
    return (work.shots, work.prefix_tokens, sentences, *computed, *seconds, gain.median, gain.spread)
