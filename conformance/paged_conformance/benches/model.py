"""A small random Llama with heads of 64 elements, which every attention backend takes, and engines that run it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paged_conformance.oracles.llama import Continuation, PlainLlama
from paged_core.engine.assemble import assemble, load_settings
from paged_core.testing.tiny import CONFIG, write_tiny_llama

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.engine.metrics import EngineStats
    from paged_core.plugins import Plugins

WIDER = 4
SMALL: dict[str, Any] = CONFIG | {"head_dim": 16 * WIDER}
TIE = 1e-3  # law 15: below this gap between the two best logits either token is right


def write_small_llama(folder: Path, seed: int = 0) -> Path:
    """The tiny Llama of paged_core.testing, with wider heads. Same seed, same tensors."""
    import torch
    from safetensors.torch import load_file, save_file

    write_tiny_llama(folder, seed)
    (folder / "config.json").write_text(json.dumps(SMALL))
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(seed + 1)
    for name, tensor in weights.items():
        if "self_attn" in name:
            wide = list(tensor.shape)
            wide[1 if "o_proj" in name else 0] *= WIDER  # the axis of the heads
            weights[name] = torch.randn(wide, generator=generator) * 0.15
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def expected(folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Continuation]:
    """Greedy continuations by plain float64 mathematics. Fails when two logits tie: then another seed is needed."""
    model = PlainLlama(folder, SMALL)
    found = [model.continue_greedily(prompt, num_tokens) for prompt in prompts]
    assert min(gap for one in found for gap in one.gaps) > TIE, "the reference itself has a tie; choose another seed"
    return found


def answers(
    plugins: Plugins,
    folder: Path,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    **settings: Any,
) -> tuple[list[RequestOutput], EngineStats]:
    """Run `prompts` together on a fresh engine in float32, audited; their outputs in order, and what the engine did."""
    chosen = {"dtype": "float32", "max_num_seqs": 8, "audit": True, "threads": 1, **settings}
    engine = assemble(load_settings(model=str(folder), **chosen), plugins).engine
    try:
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            engine.add_request(str(i), list(prompt), one)
        outputs: dict[str, RequestOutput] = {}
        while engine.has_unfinished:
            outputs |= {output.request_id: output for output in engine.step() if output.finished}
        engine.check()
        return [outputs[str(i)] for i in range(len(prompts))], engine.stats()
    finally:
        engine.close()
