"""Measure one engine in the Python that has it: the same work and the same clocks for ours and for every peer.

usage: python drive.py ORDER.json RESULT.json

Runs in the peer's environment, so it needs nothing beyond the standard library; `with_NAME.py` beside it imports that
peer alone. The order: `driver` (NAME), `model`, `threads`, `workload` (path) and `settings` (of the driver's own).
The result: the dict of `measured`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Protocol

DECODED = 128
PROMPT = 128
LONG_PROMPT = 512
BATCH = 32
ROUNDS = 3
_STARTED = time.perf_counter()
_TICK = "SC_CLK_TCK"

Ids = list[int]


class Engine(Protocol):
    """What a driver's `load(order)` returns: an engine that is ready."""

    version: str  # name and version as the table shows them

    def generate(self, prompts: list[Ids], outputs: list[int]) -> list[Ids]:
        """Answer all prompts at once, greedily, each with exactly so many tokens. Prefixes are not kept."""

    def close(self) -> None:
        """Leave no process behind."""


def measured(engine: Engine, requests: list[dict[str, Any]], load_s: float) -> dict[str, Any]:
    """Seconds and tokens of the three kinds of work, memory, and how busy others were meanwhile.

    first_s: prompt of 512 tokens, one token; median of 3. decode_per_s: tokens a second after the first one, alone.
    prefill_per_s: prompt tokens a second of 32 prompts of 128. mixed_s: all requests. others: by phase, the share of
    the machine that no process of this engine used (None where the system does not tell).
    """
    ids = itertools.cycle([token for one in requests for token in one["prompt"]])
    engine.generate([take(ids, PROMPT)], [8])
    engine.generate([take(ids, LONG_PROMPT)], [1])
    usage = Usage()
    first = median([seconds(engine, [take(ids, LONG_PROMPT)], [1]) for _ in range(ROUNDS)])
    one = median([seconds(engine, [take(ids, PROMPT)], [1]) for _ in range(ROUNDS)])
    many = median([seconds(engine, [take(ids, PROMPT)], [1 + DECODED]) for _ in range(ROUNDS)])
    batch = median([seconds(engine, [take(ids, PROMPT) for _ in range(BATCH)], [1] * BATCH) for _ in range(ROUNDS)])
    others = {"single": usage.others()}
    usage = Usage()
    begin = time.perf_counter()
    tokens = engine.generate([one["prompt"] for one in requests], [one["out"] for one in requests])
    mixed = time.perf_counter() - begin
    others["mixed"] = usage.others()
    wanted, got = [one["out"] for one in requests], [len(answer) for answer in tokens]
    if wanted != got:
        raise RuntimeError(f"{engine.version} answered {sum(got)} tokens instead of {sum(wanted)}")
    return {
        "engine": engine.version,
        "load_s": load_s,
        "first_s": first,
        "decode_per_s": DECODED / (many - one),
        "prefill_per_s": BATCH * PROMPT / batch,
        "mixed_s": mixed,
        "output_tokens": sum(got),
        "peak_bytes": peak_bytes(),
        "others": others,
        "tokens": tokens,
    }


def take(ids: Any, count: int) -> Ids:
    """The next `count` ids, so that no prompt repeats the one before."""
    return list(itertools.islice(ids, count))


def median(values: list[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def seconds(engine: Engine, prompts: list[Ids], outputs: list[int]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    engine.generate(prompts, outputs)
    return time.perf_counter() - begin


class Usage:
    """Processor time of the machine and of this process with its descendants, from now on."""

    def __init__(self) -> None:
        self._begin, self._busy, self._own = time.perf_counter(), busy_seconds(), own_seconds()

    def others(self) -> float | None:
        """Share of all cores that went to other processes, or to other machines on the same processor."""
        if self._busy is None:
            return None
        busy, own = (busy_seconds() or 0.0) - self._busy, own_seconds() - self._own
        return max(0.0, busy - own) / ((time.perf_counter() - self._begin) * (os.cpu_count() or 1))


def busy_seconds(path: str = "/proc/stat") -> float | None:
    """Processor seconds of the whole machine, stolen ones included. None where the system does not tell."""
    if not os.path.exists(path):
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path(path).read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf(_TICK)


def own_seconds() -> float:
    """Processor seconds of this process, its descendants and those of them that ended. 0 where nobody tells."""
    fields = [_stat(pid) for pid in family()]
    return sum(sum(map(int, one[11:15])) for one in fields) / os.sysconf(_TICK) if fields else 0.0


def peak_bytes() -> int | None:
    """Sum of the largest resident sizes of this process and its descendants."""
    peaks = [_status(pid, "VmHWM") for pid in family()]
    return sum(peaks) * 1024 if peaks else None


def family() -> list[int]:
    """This process and its descendants; empty where there is no /proc."""
    if not os.path.exists("/proc/self/stat"):
        return []
    parents = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found = [os.getpid()]
    for pid in found:  # grows while it is walked
        found += [child for child, stat in parents.items() if stat and int(stat[1]) == pid]
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty when that process has just ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _status(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(field))


def main(order_path: str, result_path: str) -> None:
    """Load, measure, write the result, close."""
    order = json.loads(Path(order_path).read_text())
    requests = json.loads(Path(order["workload"]).read_text())["requests"]
    engine = importlib.import_module(f"with_{order['driver']}").load(order)
    try:
        result = measured(engine, requests, time.perf_counter() - _STARTED)
        floor = getattr(engine, "floor", None)  # ours alone knows what its work must cost
        result["floor"] = floor(requests, DECODED, PROMPT, LONG_PROMPT) if floor else None
        Path(result_path).write_text(json.dumps(result))
    finally:
        engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
