"""One rank as a process of its own: `python rank_process.py RANK FOLDER` runs all cases of FOLDER/cases.pt.

Twice: in a group of 2 and in one of 3. Writes to FOLDER/RANK.pt, by size and case, the logits of every step.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from torch import distributed

from paged_core.model.parallel.collective import join
from paged_core.model.parallel.shard import Shard

SIZES = (2, 3)
TIMEOUT_S = 240.0


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    paged = _conftest().PagedModel
    cases = torch.load(folder / "cases.pt", weights_only=False)
    computed = {}
    for size in SIZES:
        if rank >= size:
            continue
        store = distributed.PrefixStore(str(size), distributed.FileStore(str(folder / "store")))
        collective = join(store, Shard(rank, size), torch.device("cpu"), TIMEOUT_S)
        with torch.inference_mode():
            for name, (spec, weights, batches) in cases.items():
                model = paged(spec, weights, collective=collective)
                computed[size, name] = [model.step({0: tokens})[0] for tokens in batches]
    torch.save(computed, folder / f"{rank}.pt")


def _conftest():
    """Where PagedModel is."""
    found = importlib.util.spec_from_file_location("model_conftest", Path(__file__).parents[1] / "conftest.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
