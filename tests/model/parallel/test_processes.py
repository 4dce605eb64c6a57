"""The same as `test_ranks` with processes and sockets between them, which run all families one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

LIMIT_S = 480
NUM_STEPS = 4


@pytest.mark.slow
def test_logits_and_greedy_tokens_are_those_of_one_process(
    families: list[str], model_of: Any, agrees: Any, prompt: list[int], tmp_path: Path
) -> None:
    cases = {name: model_of(name) for name in families}
    work = {
        name: (case.spec, case.weights, [prompt, *([token] for token in case.tokens[: NUM_STEPS - 1])])
        for name, case in cases.items()
    }
    torch.save(work, tmp_path / "cases.pt")
    computed = ranks(3, tmp_path)
    for size in (2, 3):
        for name, case in cases.items():
            agrees(computed[0][size, name], case._replace(tokens=case.tokens[:NUM_STEPS]))
    for (size, _), steps in {**computed[1], **computed[2]}.items():
        assert all(logits.shape[1] == -(-319 // size) for logits in steps)


def ranks(num: int, folder: Path) -> list[dict[tuple[int, str], list[torch.Tensor]]]:
    """What each rank computed. Fails with the errors of those that ended badly; leaves no process behind."""
    main = Path(__file__).with_name("rank_process.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(main), str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(num)
    ]
    try:
        errors = [process.communicate(timeout=LIMIT_S)[1] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    failed = [error for process, error in zip(running, errors, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(num)]
