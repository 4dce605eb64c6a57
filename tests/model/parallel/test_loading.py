"""No rank loads the whole model: parts are cut out of the mapped files before anything is converted or copied."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paged_load_hf.loader import HfLoader
from safetensors.torch import save_file

from paged_core.errors import ModelFormatError
from paged_core.model.decoder import Decoder
from paged_core.model.parallel.shard import Shard, local_spec
from paged_core.model.place import Place
from paged_core.model.spec import spec_from_hf
from paged_core.model.store import WeightStore
from paged_core.model.weights import expected_shapes
from paged_core.testing.tiny import CONFIG

FLOAT32 = Place(torch.device("cpu"), torch.float32)
MEBIBYTE = 1 << 20
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3}


def write(folder: Path, **sizes: int) -> Path:
    """A Llama in bfloat16 whose tensors are spread over three files."""
    config = {**CONFIG, **HEADS, "dtype": "bfloat16", **sizes}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        rows = {"q": heads, "k": kv, "v": kv}
        shapes |= {f"{at}self_attn.{part}_proj.weight": (count, hidden) for part, count in rows.items()}
        shapes |= {f"{at}mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes |= {f"{at}self_attn.o_proj.weight": (hidden, heads), f"{at}mlp.down_proj.weight": (hidden, inner)}
    places = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(shapes)}
    for file in set(places.values()):
        tensors = {name: torch.full(shapes[name], 0.01).bfloat16() for name, at in places.items() if at == file}
        save_file(tensors, str(folder / file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def part_bytes(spec: Any, shard: Shard, element: int) -> int:
    return element * sum(math.prod(shape) for shape in expected_shapes(local_spec(spec, shard)).values())


@pytest.mark.parametrize("rank", range(3))
def test_the_store_gets_the_ranks_part_of_every_tensor_and_nothing_else(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = HfLoader(lambda progress: write(tmp_path / "model", intermediate_size=100))
    spec, given = loader.spec(), {}
    put = WeightStore.put

    def recorded(store: WeightStore, name: str, tensor: torch.Tensor) -> None:
        given[name] = tensor.shape, tensor.dtype
        put(store, name, tensor)

    monkeypatch.setattr(WeightStore, "put", recorded)
    Decoder.load(spec, loader.weights(), FLOAT32, None, collective=SimpleNamespace(rank=rank, size=3))
    assert {name: tuple(shape) for name, (shape, _) in given.items()} == expected_shapes(
        local_spec(spec, Shard(rank, 3))
    )
    assert {dtype for _, dtype in given.values()} == {torch.bfloat16}, "as stored: nothing was converted yet"


def test_a_kept_part_does_not_keep_the_tensor_it_was_cut_from() -> None:
    """Dequantised tensors are in the process's own memory, in the type that is kept."""
    spec = spec_from_hf(dict(CONFIG))
    weights = [(name, torch.zeros(shape)) for name, shape in expected_shapes(spec).items()]
    decoder = Decoder.load(spec, weights, FLOAT32, None, collective=SimpleNamespace(rank=0, size=2))
    assert len(decoder._embed) == 160
    assert decoder._embed.untyped_storage().nbytes() == decoder._embed.nbytes


def test_names_and_shapes_are_checked_against_the_whole_model(tmp_path: Path) -> None:
    loader = HfLoader(lambda progress: write(tmp_path / "model"))
    spec, group = loader.spec(), SimpleNamespace(rank=1, size=3)
    cut = [(name, tensor[:107] if name == "head.weight" else tensor) for name, tensor in loader.weights()]
    with pytest.raises(ModelFormatError, match=r"'head.weight' has shape \(107, 64\), but .* asks for \(320, 64\)"):
        Decoder.load(spec, cut, FLOAT32, None, collective=group)
    short = [(name, tensor) for name, tensor in loader.weights() if name != "norm.weight"]
    with pytest.raises(ModelFormatError, match=r"1 of \d+ tensors of this LlamaForCausalLM are missing: norm.weight"):
        Decoder.load(spec, short, FLOAT32, None, collective=group)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of a process's memory")
def test_a_rank_holds_its_part_and_one_tensor_at_most(tmp_path: Path) -> None:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 16_385}
    folder = write(tmp_path / "model", head_dim=64, **sizes)
    spec = HfLoader(lambda progress: folder).spec()
    whole, part = part_bytes(spec, Shard(), 4), part_bytes(spec, Shard(1, 3), 4)
    assert whole > 180_000_000
    largest = 4 * sizes["vocab_size"] * sizes["hidden_size"] // 3  # of the rank's own
    used = loaded(1, 3, folder)
    assert used["end"] < part + 10 * MEBIBYTE
    assert used["most"] < part + largest + 10 * MEBIBYTE
    alone = loaded(0, 1, folder)
    assert whole * 0.9 < alone["end"], "a process that holds it all is seen to do so"


def loaded(rank: int, size: int, folder: Path) -> dict[str, int]:
    main = Path(__file__).with_name("load_process.py")
    command = [sys.executable, str(main), str(rank), str(size), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
