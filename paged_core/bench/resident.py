"""`bench memory`: what a process of ours holds beside weights and keys and values, while it loads and while it works.

Each reading is a fresh process, warm caches. It loads, then fills its whole KV pool with prompts and decodes, so that
every byte that is subtracted was there.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.bench.report import Column, Table, verdict
from paged_core.errors import ConfigError, PagedError
from paged_core.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paged_core.api.model import ModelSpec
    from paged_core.engine.config import EngineConfig
    from paged_core.engine.engine import Engine

GOAL_MB = 350.0
POOL = "64MiB"
"""KV pool unless another is asked for: small, so that filling it takes seconds."""
_PROMPT, _DECODED = 512, 16
_PROGRAM = "import sys; from paged_core.bench.resident import main; main(*sys.argv[1:])"
_MB = 1e6


def main(settings_path: str, result_path: str) -> None:
    """In the process that is measured: load by the settings of `LLM`, work, write bytes by name."""
    from paged_core import LLM
    from paged_core.engine.assemble import locate
    from paged_core.plugins import bootstrap

    settings = json.loads(Path(settings_path).read_text())
    settings["plugin_modules"] = tuple(settings.get("plugin_modules", ()))
    with LLM(**settings, prefix_cache=False) as llm:
        found = {"loading": peak_bytes(), "ready": resident_bytes()}
        _forget_peak()
        facts = llm.engine.facts
        _fill(llm.engine)
        found |= {"working": peak_bytes(), "kv": facts.num_blocks * facts.block_bytes}
        spec = locate(llm.settings, bootstrap(llm.settings)).spec
        found["weights"] = weights_bytes(spec, facts)
    Path(result_path).write_text(json.dumps(found))


def weights_bytes(spec: ModelSpec, facts: EngineConfig) -> int:
    """Every parameter once, in the width it computes in; a tied head counts beside the embedding only where it is
    narrower."""
    from paged_core.bench.floor import stored_bytes
    from paged_core.engine.hardware import element_bytes
    from paged_core.model.weights import expected_shapes

    embedding = spec.vocab_size * (spec.embedding_projection or spec.hidden_size)
    shapes = [shape for name, shape in expected_shapes(spec).items() if name != "embed.weight"]
    if spec.tie_embeddings and facts.quantization != "none":
        shapes.append((spec.vocab_size, spec.hidden_size))
    return embedding * element_bytes(facts.dtype) + sum(stored_bytes(shape, facts) for shape in shapes)


def _fill(engine: Engine) -> None:
    """Run as many prompts at once as the pool holds, a few tokens each."""
    from paged_core.api.params import SamplingParams

    facts = engine.facts
    params = SamplingParams(temperature=0, max_tokens=_DECODED, ignore_eos=True, detokenize=False)
    length = min(_PROMPT, facts.max_model_len - _DECODED)
    blocks = -(-(length + _DECODED) // facts.block_size)
    for i in range(max(1, facts.num_blocks // blocks)):
        engine.add_request(str(i), [(7 * i + j) % (facts.vocab_size - 8) + 8 for j in range(length)], params)
    while engine.has_unfinished:
        engine.step()


def peak_bytes() -> int:
    """The most this process had in memory since it began or since its peak was forgotten."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """What it has in memory now."""
    return _status("VmRSS")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) * 1024


def reading(settings: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by name, of one process. PagedError with its last words when it fails."""
    with tempfile.TemporaryDirectory(prefix="paged-memory-") as folder:
        given, result = Path(folder) / "settings.json", Path(folder) / "result.json"
        given.write_text(json.dumps(dict(settings)))
        command = [sys.executable, "-c", _PROGRAM, str(given), str(result)]
        done = subprocess.run(command, env=child_environment({}), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            raise PagedError(f"the measured process failed with code {done.returncode}: {last[0]}")
        found: dict[str, int] = json.loads(result.read_text())
        return found


def memory_table(
    ways: Mapping[str, Mapping[str, Any]], rounds: int, say: Callable[[str], None], proc: str = "/proc/self/clear_refs"
) -> Table:
    """A row for each of the named settings: weights, KV, both peaks and what they hold besides.

    ConfigError where the system has no /proc. The first reading of a way fills the caches and is thrown away.
    """
    if not Path(proc).exists():
        raise ConfigError(f"memory is read from {proc}, which this system does not have")
    columns = (
        Column("weights", "weights"),
        Column("weights_mb", "weights MB", ".0f"),
        Column("kv_mb", "KV MB", ".0f"),
        Column("loading_mb", "peak loading MB", ".0f"),
        Column("working_mb", "peak working MB", ".0f"),
        Column("loading_rest_mb", "besides, loading", ".0f"),
        Column("working_rest_mb", "besides, working", ".0f"),
        Column("goal_mb", "goal", ".0f"),
        Column("verdict", "verdict"),
    )
    table = Table("Memory beside weights and KV", columns)
    for name, settings in ways.items():
        say(f"{name}, to fill the caches")
        reading(settings)
        say(f"{name}, {rounds} rounds")
        table.add(name, *_row([reading(settings) for _ in range(rounds)]))
    table.notes += [
        f"Medians of {rounds} fresh processes with warm caches, resident memory, MB of 10^6 bytes. Working: prompts",
        "that fill the whole KV pool, then decoding. Loading touches no KV yet. Besides: peak less weights, and less",
        "KV when working; the larger of both is held against the goal.",
    ]
    return table


def _row(readings: Sequence[Mapping[str, int]]) -> tuple[float | str | None, ...]:
    names = ("weights", "kv", "loading", "working")
    weights, kv, loading, working = (statistics.median(one[name] for one in readings) / _MB for name in names)
    rests = (loading - weights, working - weights - kv)
    return weights, kv, loading, working, *rests, GOAL_MB, verdict(-math.ceil(max(rests)), -GOAL_MB)
