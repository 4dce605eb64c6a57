"""This engine, by the same calls as vLLM's. `settings` are those of `LLM`; the floor is computed after the work."""

from __future__ import annotations

from typing import Any

from paged_core import LLM, SamplingParams, __version__


class Ours:
    """An LLM without prefix cache."""

    version = f"paged-core {__version__}"

    def __init__(self, settings: dict[str, Any]) -> None:
        self._llm = LLM(**settings, prefix_cache=False)

    def generate(self, prompts: list[list[int]], outputs: list[int]) -> list[list[int]]:
        """All at once."""
        results = self._llm.generate(prompts, [_greedy(output) for output in outputs], use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def close(self) -> None:
        """Release the model."""
        self._llm.close()

    def floor(self, requests: list[dict[str, Any]], decoded: int, prompt: int, long_prompt: int) -> dict[str, float]:
        """Least seconds and most tokens a second of the same work, at the peaks measured now, by the same keys."""
        from paged_core.bench.floor import floor_of, replay
        from paged_core.bench.peaks import measure_peaks
        from paged_core.bench.stub import Arrival
        from paged_core.engine.assemble import locate
        from paged_core.plugins import bootstrap

        settings, facts = self._llm.settings, self._llm.engine.facts
        floor = floor_of(locate(settings, bootstrap(settings)).spec, facts, measure_peaks())

        def ends(pairs: list[tuple[list[int], int]]) -> list[float]:
            return replay(facts, floor, [Arrival(0.0, ids, _greedy(output)) for ids, output in pairs])

        alone = ends([([1] * prompt, 1 + decoded)])
        return {
            "mixed_s": ends([(one["prompt"], one["out"]) for one in requests])[-1],
            "first_s": ends([([1] * long_prompt, 1)])[-1],
            "decode_per_s": decoded / (alone[-1] - alone[-1 - decoded]),
        }


def _greedy(output: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)


def load(order: dict[str, Any]) -> Ours:
    """The engine that the order's settings name."""
    return Ours(order["settings"])
