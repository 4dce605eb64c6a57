"""A program for tests of a process's life: `paged-core serve` over an engine that does what files in the folder say.

Arguments: the folder, then those of `serve`. `wait_load` there: loading goes on until the file is gone. `slow`: the
seconds a step takes. `hang`: steps wait until it is gone. `break`: the next step raises. A file `loading` appears when
the load begins.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from paged_core.cli import main
from paged_core.cli import serve as command
from paged_core.engine.aio import AsyncLLM
from paged_core.engine.clock import RealClock
from paged_core.errors import ModelError
from paged_core.testing.build import EngineShape, build_engine
from paged_core.testing.scripted import ScriptedExecutor
from paged_core.testing.tokenizer import ByteTokenizer

STAGE = Path(sys.argv[1])


class StagedExecutor(ScriptedExecutor):
    """Answers "a" for ever."""

    def submit(self, plan):
        if (STAGE / "break").exists():
            raise RuntimeError("the stage\nbroke")
        while (STAGE / "hang").exists():
            time.sleep(0.01)
        if (STAGE / "slow").exists():
            time.sleep(float((STAGE / "slow").read_text()))
        return super().submit(plan)


def open_llm(settings):
    (STAGE / "loading").touch()
    while (STAGE / "wait_load").exists():
        time.sleep(0.01)
    if (STAGE / "bad_model").exists():
        raise ModelError("this is no model")
    shape = EngineShape(max_model_len=256, num_blocks=256, tokenizer=ByteTokenizer(["a"]))
    executor = StagedExecutor([], then=shape.tokenizer.id_of("a"))
    return AsyncLLM(engine=build_engine(executor, shape, clock=RealClock()))


if __name__ == "__main__":
    command.open_llm = open_llm
    main(["serve", "--port=0", *sys.argv[2:]])
