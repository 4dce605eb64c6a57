"""The table of resources: every compiled kernel's figures as committed, and what a measurement has against them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = Path(__file__).parent
FILE = FOLDER / "resources.json"
PROGRAMS = {"attn_cuda": FOLDER / "measure_cuda.py", "attn_triton": FOLDER / "measure_triton.py"}
ARCHS = ("sm_80", "sm_90", "sm_100")
GROWING = ("registers", "stack", "static_shared", "dynamic_shared")
UPDATE = "python scripts/update_gates.py"
_LEAST_SHARED = 99 * 1024  # of GPUs of 8.6, 8.9 and 12.0
_SHARED = {"sm_80": _LEAST_SHARED, "sm_90": 227 * 1024, "sm_100": 227 * 1024}

Kernels = dict[str, dict[str, Any]]
"""Figures by kernel, of one plugin and architecture."""


def largest_block(plugin: str, arch: str) -> int:
    """Bytes of shared memory that a block may have: what is compiled for sm_80 also runs on 8.6 and 8.9.

    attn_cuda launches with the same sizes on every GPU, so there the least counts.
    """
    return _LEAST_SHARED if plugin == "attn_cuda" else _SHARED[arch]


def measure(plugin: str, arch: str) -> tuple[str, Kernels]:
    """Compile all of a plugin's kernels for one architecture, in a process of its own: the compiler, and the figures.

    Raises RuntimeError with what the process said where one does not compile.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    command = [sys.executable, str(PROGRAMS[plugin]), arch]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{plugin} does not compile for {arch}:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    return report["compiler"], report["kernels"]


def read() -> dict[str, Any]:
    """plugin -> {compiler, kernels: {name: {arch: figures}}}."""
    table: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return table


def of_arch(table: Mapping[str, Any], plugin: str, arch: str) -> Kernels:
    """A plugin's rows for one architecture."""
    rows = table[plugin]["kernels"] if plugin in table else {}
    return {name: archs[arch] for name, archs in rows.items() if arch in archs}


def objections(known: Kernels, found: Kernels, largest_block: int, *, same_compiler: bool = True) -> list[str]:
    """What is wrong with the figures found, one line a fault; empty = the gate holds.

    Another version of the compiler than the table's gives other figures: then only spills are judged.
    """
    lines = [f"{name}: not in the table; {UPDATE}" for name in found if name not in known]
    lines += [f"{name}: in the table, but there is no such kernel; {UPDATE}" for name in known if name not in found]
    for name, figures in found.items():
        row = known.get(name, {})
        lines += [f"{name}: {line}" for line in _spills(row, figures)]
        if same_compiler and row:
            lines += [f"{name}: {line}" for line in _growth(row, figures)]
        shared = figures["static_shared"] + figures["dynamic_shared"]
        if shared > largest_block:
            lines.append(f"{name}: {shared} bytes of shared memory, a block may have {largest_block}")
    return lines


def _spills(row: Mapping[str, Any], figures: Mapping[str, int]) -> Iterator[str]:
    spilled = figures["spill_stores"] + figures["spill_loads"]
    if spilled and not row.get("reason"):
        stores, loads = figures["spill_stores"], figures["spill_loads"]
        yield f"spills ({stores} bytes stored, {loads} loaded), and the table gives no reason"
    if row.get("reason") and not spilled:
        yield f"spills no more: its reason can go; {UPDATE}"


def _growth(row: Mapping[str, Any], figures: Mapping[str, int]) -> Iterator[str]:
    for figure in (*GROWING, "spill_stores", "spill_loads"):
        if figures[figure] > row[figure]:
            yield f"{figure} grew from {row[figure]} to {figures[figure]}"


def write(table: Mapping[str, Any]) -> None:
    """One line for each kernel and architecture, so that a difference reads well."""
    plugins = []
    for plugin, body in table.items():
        kernels = []
        for name, archs in body["kernels"].items():
            rows = ",\n".join(f"    {json.dumps(arch)}: {json.dumps(figures)}" for arch, figures in archs.items())
            kernels.append(f"   {json.dumps(name)}: {{\n{rows}\n   }}")
        inner = ",\n".join(kernels)
        compiler = json.dumps(body["compiler"])
        plugins.append(f' "{plugin}": {{\n  "compiler": {compiler},\n  "kernels": {{\n{inner}\n  }}\n }}')
    FILE.write_text("{\n" + ",\n".join(plugins) + "\n}\n", encoding="utf-8")


def renewed(old: Mapping[str, Any], plugin: str, found: Mapping[str, tuple[str, Kernels]]) -> dict[str, Any]:
    """A plugin's part of the table from measurements by architecture. Reasons stay where there is still a spill."""
    kernels: dict[str, dict[str, Any]] = {}
    for arch, (_, measured) in found.items():
        known = of_arch(old, plugin, arch)
        for name, figures in measured.items():
            spills = figures["spill_stores"] + figures["spill_loads"]
            reason = {"reason": known.get(name, {}).get("reason", "")} if spills else {}
            kernels.setdefault(name, {})[arch] = dict(figures) | reason
    compilers = {compiler for compiler, _ in found.values()}
    return {"compiler": " and ".join(sorted(compilers)), "kernels": kernels}
