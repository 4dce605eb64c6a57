"""`python load_process.py RANK SIZE FOLDER` loads a rank's part of a model folder in float32.

It prints how much memory of its own the process has beyond what it had before, in bytes: `most` while it loads, and in
the end.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from paged_load_hf.loader import HfLoader

from paged_core.model.decoder import Decoder
from paged_core.model.memory import large_blocks_returned
from paged_core.model.place import Place
from paged_core.model.store import WeightStore
from paged_core.model.weights import expected_shapes


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    loader = HfLoader(lambda progress: folder)
    spec, place = loader.spec(), Place(torch.device("cpu"), torch.float32)
    warm_up(spec, place)
    seen: list[int] = []
    put = WeightStore.put

    def watched(store, name, tensor):
        put(store, name, tensor)
        seen.append(own_bytes())

    WeightStore.put = watched
    before = own_bytes()
    with torch.inference_mode(), large_blocks_returned():
        decoder = Decoder.load(
            spec, loader.weights(), place, None, collective=SimpleNamespace(rank=rank, size=size) if size > 1 else None
        )
    result = {"most": max(seen) - before, "end": own_bytes() - before}
    print(json.dumps(result))
    del decoder


def warm_up(spec, place):
    """What loading any model brings into memory is there: packages, kernels."""
    small = replace(spec, num_layers=1, vocab_size=16, intermediate_size=16)
    Decoder.load(small, [(name, torch.zeros(shape)) for name, shape in expected_shapes(small).items()], place, None)


def own_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
