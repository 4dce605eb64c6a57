"""A program for campaigns: `paged-core serve` over a small model whose every token depends on all tokens before it, so
that an answer that is right was computed from the right blocks. The arguments are those of `serve`."""

from __future__ import annotations

import sys

from paged_core.cli import main
from paged_core.cli import serve as command
from paged_core.engine.aio import AsyncLLM
from paged_core.engine.clock import RealClock
from paged_core.testing.build import EngineShape, build_engine, default_plugins, torch_sampler
from paged_core.testing.shadow_logits import ShadowLogits


def open_llm(settings):
    shape = EngineShape(max_model_len=512, num_blocks=1024, max_num_seqs=32, token_budget=256)
    plugins = default_plugins()
    executor = ShadowLogits(shape.block_size, torch_sampler(shape, plugins))
    return AsyncLLM(engine=build_engine(executor, shape, plugins=plugins, clock=RealClock()))


if __name__ == "__main__":
    command.open_llm = open_llm
    main(["serve", "--port=0", *sys.argv[1:]])
