"""Broken samplers, each sample_torch with one defect. `test_sampler_mutants.py` names the test that catches it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from paged_sample_torch import TorchSamplerProvider

from paged_core.api.hookspecs import hookimpl
from paged_core.api.logits import LogitsProcessor
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.api.sampler import Drawing, Sampler, SamplerNeed, Samples

if TYPE_CHECKING:
    from paged_core.api.batch import RowStart, TopLogprobs


class Wrapped(Sampler):
    """sample_torch, passed on faithfully; a mutant overrides one method, or forces a mode of log-probabilities."""

    mode = ""

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner
        self.starts: dict[int, RowStart] = {}

    def start(self, start: RowStart) -> None:
        self.starts[start.row] = start
        self.inner.start(self.altered(start))

    def altered(self, start: RowStart) -> RowStart:
        return start

    def end(self, row: int) -> None:
        self.inner.end(row)

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        return self.inner.sample(logits, rows, positions, num_candidates)

    def logprobs(self, logits: Any, targets: Any, num_logprobs: int) -> TopLogprobs:
        return self.inner.logprobs(logits, targets, num_logprobs)

    @staticmethod
    def changed(start: RowStart, **values: Any) -> RowStart:
        """The same start with some parameters changed, unvalidated."""
        params = copy.copy(start.params)
        for name, value in values.items():
            setattr(params, name, value)
        return start._replace(params=params)


class SeedSharedByBranches(Wrapped):
    """All branches of a request draw from one stream."""

    def altered(self, start: RowStart) -> RowStart:
        return start._replace(branch=0)


class SeedIgnored(Wrapped):
    """Every row draws from one stream, whatever its seed."""

    def altered(self, start: RowStart) -> RowStart:
        return start._replace(seed=1)


class StateByPlace(Wrapped):
    """Penalties belong to a place in the batch, not to a row."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        return self.inner.sample(logits, np.arange(len(rows), dtype=np.int32), positions, num_candidates)


class TopKOneMore(Wrapped):
    """Keeps k + 1 tokens."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, top_k=start.params.top_k + 1) if start.params.top_k > 0 else start


class BestFewOnly(Wrapped):
    """Never looks beyond the 256 best tokens."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        if logits.shape[1] > 256:
            last = logits.float().topk(256, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < last, float("-inf"))
        return self.inner.sample(logits, rows, positions, num_candidates)


class TopPIgnored(Wrapped):
    """Never cuts at top_p."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, top_p=1.0)


class MinTokensOneLess(Wrapped):
    """Lets the end come one token too early."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, min_tokens=max(0, start.params.min_tokens - 1))


class StopIdsInMinTokensIgnored(Wrapped):
    """Bars the model's end before min_tokens, but not the request's own stop ids (case M14)."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, stop_token_ids=[])


class NanFailsTheBatch(Wrapped):
    """One row of NaN takes all the others along."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        result = self.inner.sample(logits, rows, positions, num_candidates)
        if result.failed:
            reason = next(iter(result.failed.values()))
            result.failed = dict.fromkeys(range(len(rows)), reason)
        return result


class NanUnnoticed(Wrapped):
    """Draws something from a row of NaN and says nothing."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        return self.inner.sample(logits.nan_to_num(nan=0.0), rows, positions, num_candidates)


class LogprobsAfterProcessing(Wrapped):
    """Log-probabilities of the logits that temperature has already changed."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        raw = logits.clone()
        result = self.inner.sample(logits, rows, positions, num_candidates)
        for draw in result.logprobs:
            params = self.starts[int(rows[draw])].params
            scaled = raw[draw : draw + 1].float() / max(params.temperature, 0.1)
            wanted = result.tokens[draw : draw + 1]
            result.logprobs[draw] = self.inner.logprobs(scaled, wanted, params.logprobs or 0)
        return result


class RankFromZero(Wrapped):
    """Counts ranks from zero."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        result = self.inner.sample(logits, rows, positions, num_candidates)
        result.logprobs = {draw: replace(top, rank=top.rank - 1) for draw, top in result.logprobs.items()}
        return result


class StateLostOnRestart(Wrapped):
    """A row that comes back has forgotten its output: penalties and bad words begin anew."""

    def altered(self, start: RowStart) -> RowStart:
        # the output becomes prompt, so that positions still fit; frequency and presence no longer see it
        return start._replace(prompt=np.concatenate([start.prompt, start.output]), output=start.output[:0])


class PromptForgotten(Wrapped):
    """The repetition penalty does not see the prompt."""

    def altered(self, start: RowStart) -> RowStart:
        return start._replace(prompt=np.full_like(start.prompt, -1))


class DrawsByCall(Wrapped):
    """The position of a draw is the number of calls so far."""

    calls = 0

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        self.calls += 1
        return self.inner.sample(logits, rows, np.full_like(positions, 10 + self.calls), num_candidates)


class NeighboursCount(Wrapped):
    """A random draw depends on how many rows are drawn together."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        return self.inner.sample(logits, rows, positions + len(rows) - 1, num_candidates)


class PenaltiesIgnored(Wrapped):
    """Declares penalties and ignores them (case G06)."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)


class LongBadWordsIgnored(Wrapped):
    """Bars bad words of one token only."""

    def altered(self, start: RowStart) -> RowStart:
        words = [word for word in start.params.bad_words_token_ids if len(word) == 1]
        return self.changed(start, bad_words_token_ids=words)


class EndingMustBeKnown(Wrapped):
    """Raises when told to forget a row that it does not know."""

    def end(self, row: int) -> None:
        del self.starts[row]
        self.inner.end(row)


class StridesIgnored(Wrapped):
    """Reads logits as if they lay densely in memory."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        dense = logits.as_strided(logits.shape, (logits.shape[1], 1))
        return self.inner.sample(dense, rows, positions, num_candidates)


class CandidatesOfRawLogits(Wrapped):
    """Beam candidates before bias and penalties, masked tokens among them."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        raw = logits.clone()
        result = self.inner.sample(logits, rows, positions, num_candidates)
        for draw in result.candidates:
            wanted = int(num_candidates[draw])
            result.candidates[draw] = self.inner.logprobs(
                raw[draw : draw + 1].float(), result.tokens[draw : draw + 1], wanted
            )
        return result


class ModeIgnored(Wrapped):
    """Raw log-probabilities, whatever the mode."""

    mode = "raw_logprobs"


class ModeProcessed(Wrapped):
    """Processed where raw was asked for."""

    mode = "processed_logprobs"


class ListIgnored(Wrapped):
    """The best tokens instead of the listed ones."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, logprob_token_ids=None)


class ProcessorsShared(Wrapped):
    """Rows that bring the same processor share one fork."""

    def altered(self, start: RowStart) -> RowStart:
        shared = [_Unforked(processor) for processor in start.params.logits_processors or ()]
        return self.changed(start, logits_processors=shared)


class _Unforked(LogitsProcessor):
    def __init__(self, inner: LogitsProcessor) -> None:
        self.inner = inner

    def fork(self) -> LogitsProcessor:
        return self.inner

    def apply(self, logits: Any) -> None:
        raise NotImplementedError("its fork is another class")


class ProcessorsBackwards(Wrapped):
    """The last processor acts first."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, logits_processors=(start.params.logits_processors or [])[::-1])


class ProcessorsForgetful(Wrapped):
    """A restarted row does not tell its processors of the output."""

    def altered(self, start: RowStart) -> RowStart:
        if not start.params.logits_processors:
            return start
        return start._replace(output=start.output[:0])


class ProcessorsUnaware(Wrapped):
    """Processors are not told of drawn tokens."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, logits_processors=[_Deaf(p) for p in start.params.logits_processors or ()])


class _Deaf(LogitsProcessor):
    def __init__(self, inner: LogitsProcessor) -> None:
        self.inner = inner

    def fork(self) -> LogitsProcessor:
        return _Deaf(self.inner.fork())

    def apply(self, logits: Any) -> None:
        self.inner.apply(logits)


class ProcessorFailsTheBatch(Wrapped):
    """An exception of one processor ends the step."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        result = self.inner.sample(logits, rows, positions, num_candidates)
        for reason in result.failed.values():
            if "processor" in reason:
                raise ValueError(reason)
        return result


class ProcessorsOneByOne(Wrapped):
    """The vectorised path is never taken."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, logits_processors=[_Single(p) for p in start.params.logits_processors or ()])


class _Single(LogitsProcessor):
    def __init__(self, inner: LogitsProcessor) -> None:
        self.inner = inner

    def fork(self) -> LogitsProcessor:
        return _Single(self.inner.fork())

    def apply(self, logits: Any) -> None:
        self.inner.apply(logits)

    def accept(self, tokens: Any) -> None:
        self.inner.accept(tokens)


class ForcedSwallowed(Wrapped):
    """Processors go on behind forced tokens that nobody else hears of."""

    def sample(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Samples:
        return replace(self.inner.sample(logits, rows, positions, num_candidates), forced={})


class ForcedUnasked(Wrapped):
    """Takes forced tokens where each token's log-probability was asked for."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, logprobs=None)


class ForcedUntold(Wrapped):
    """Processors are not told that the tokens they force were taken."""

    def altered(self, start: RowStart) -> RowStart:
        return self.changed(start, logits_processors=[_Surprised(p) for p in start.params.logits_processors or ()])


class _Surprised(LogitsProcessor):
    def __init__(self, inner: LogitsProcessor) -> None:
        self.inner = inner
        self.forcing: list[int] = []

    def fork(self) -> LogitsProcessor:
        return _Surprised(self.inner.fork())

    def apply(self, logits: Any) -> None:
        self.inner.apply(logits)

    def accept(self, tokens: Any) -> None:
        if list(tokens) != self.forcing:
            self.inner.accept(tokens)
        self.forcing = []

    def forced(self) -> Any:
        self.forcing = list(self.inner.forced())
        return self.forcing


class BegunUncounted(Wrapped):
    """Draws that were begun are not counted as output."""

    def begin(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Drawing:
        samples = self.inner.sample(logits, rows, positions, num_candidates)
        for row in rows.tolist():
            self.inner.start(self.starts[row])
        return Drawing(None, None, lambda _: samples)


class BegunElsewhere(Wrapped):
    """The device goes on with other tokens than the host is told."""

    def begin(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Drawing:
        drawing = self.inner.begin(logits, rows, positions, num_candidates)
        return drawing if drawing.tokens is None else replace(drawing, tokens=drawing.tokens.roll(1))


class BegunAsOne(Wrapped):
    """What a drawing is told, the latest one makes its own."""

    def begin(self, logits: Any, rows: Any, positions: Any, num_candidates: Any = None) -> Drawing:
        self.latest = self.inner.sample(logits, rows, positions, num_candidates)
        return Drawing(None, None, lambda _: self.latest)


class MutantProvider(Provider[SamplerNeed, Sampler]):
    """Offers one mutant; it declares what sample_torch declares."""

    kind = "sampler"
    api = 1
    priority = -1
    capabilities = TorchSamplerProvider.capabilities

    def __init__(self, name: str, mutant: type[Wrapped]) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        self._mutant = mutant

    def probe(self, need: SamplerNeed) -> Fit:
        return Fit.judge(self.missing_capabilities(need.required))

    def create(self, need: SamplerNeed, settings: PluginSettings, plugins: PluginRegistry) -> Sampler:
        inner = replace(need, required=frozenset(), logprobs_mode=self._mutant.mode or need.logprobs_mode)
        return self._mutant(plugins.create("sampler", "sample_torch", inner))


MUTANTS = {
    "sample_shared_seed": SeedSharedByBranches,
    "sample_no_seed": SeedIgnored,
    "sample_by_place": StateByPlace,
    "sample_top_k_more": TopKOneMore,
    "sample_best_few": BestFewOnly,
    "sample_no_top_p": TopPIgnored,
    "sample_min_tokens_less": MinTokensOneLess,
    "sample_early_stop_ids": StopIdsInMinTokensIgnored,
    "sample_nan_kills": NanFailsTheBatch,
    "sample_nan_unnoticed": NanUnnoticed,
    "sample_late_logprobs": LogprobsAfterProcessing,
    "sample_rank_zero": RankFromZero,
    "sample_forgets": StateLostOnRestart,
    "sample_no_prompt": PromptForgotten,
    "sample_by_call": DrawsByCall,
    "sample_neighbours": NeighboursCount,
    "sample_no_penalties": PenaltiesIgnored,
    "sample_short_bad_words": LongBadWordsIgnored,
    "sample_strict_end": EndingMustBeKnown,
    "sample_no_strides": StridesIgnored,
    "sample_raw_candidates": CandidatesOfRawLogits,
    "sample_mode_ignored": ModeIgnored,
    "sample_mode_processed": ModeProcessed,
    "sample_list_ignored": ListIgnored,
    "sample_shared_processors": ProcessorsShared,
    "sample_backwards_processors": ProcessorsBackwards,
    "sample_forgetful_processors": ProcessorsForgetful,
    "sample_deaf_processors": ProcessorsUnaware,
    "sample_processor_kills": ProcessorFailsTheBatch,
    "sample_single_processors": ProcessorsOneByOne,
    "sample_forced_swallowed": ForcedSwallowed,
    "sample_forced_unasked": ForcedUnasked,
    "sample_forced_untold": ForcedUntold,
    "sample_begun_uncounted": BegunUncounted,
    "sample_begun_elsewhere": BegunElsewhere,
    "sample_begun_as_one": BegunAsOne,
}


@hookimpl
def paged_sampler() -> list[MutantProvider]:
    return [MutantProvider(name, mutant) for name, mutant in MUTANTS.items()]
