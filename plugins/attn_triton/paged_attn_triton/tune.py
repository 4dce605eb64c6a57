"""Tuning: tiles measured on the GPU at hand, once for a shape, a device and a version of Triton, and kept on disk.

It runs when a backend is created and never later, so no step and no capture of a graph contains a measurement. Only
tiles, warps and stages are measured; the rows of a tile stay, because grids follow from them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import triton
from triton.runtime.errors import OutOfResources

from paged_attn_triton.configs import Config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paged_attn_triton.shapes import Shape

    Seconds = Callable[[Shape, str], float]

log = logging.getLogger("paged_core.attn_triton")
KERNELS = ("decode", "prefill")


def tuned(shape: Shape, device: str, folder: Path, seconds: Seconds) -> Shape:
    """The shape with the fastest tiles: as kept in `folder` for this GPU, or measured now and kept there.

    `seconds(shape, kernel)` is how long "decode" or "prefill" takes with the tiles of that shape; it raises
    OutOfResources where they are more than a processor has.
    """
    key = json.dumps({"device": device, "triton": triton.__version__} | asdict(shape), sort_keys=True)
    file = folder / f"tiles-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    kept = _kept(file)
    if kept is None:
        log.info("measuring tiles for %s (first run only)", device)
        kept = {kernel: _fastest(shape, kernel, seconds) for kernel in KERNELS}
        _keep(file, key, kept)
    return _cut(shape, kept)


def candidates(rule: Config) -> list[Config]:
    """The rule's choice first, then its neighbours: half and twice the keys, warps and loads under way."""
    tiles = [replace(rule, tile=rule.tile // 2), replace(rule, tile=2 * rule.tile)]
    warps = [replace(rule, warps=rule.warps // 2), replace(rule, warps=2 * rule.warps)]
    stages = [replace(rule, stages=rule.stages - 2), replace(rule, stages=rule.stages + 2)]
    return [rule, *(each for each in (*tiles, *warps, *stages) if each.tile >= 16)]


def _cut(shape: Shape, choice: dict[str, Config]) -> Shape:
    return replace(shape, decode_choice=choice.get("decode"), prefill_choice=choice.get("prefill"))


def _fastest(shape: Shape, kernel: str, seconds: Seconds) -> Config:
    """The rule's choice must run; neighbours may be too large."""
    rule = shape.decode_config if kernel == "decode" else shape.prefill_config(False, False)
    times: dict[Config, float] = {}
    for config in candidates(rule):
        try:
            times[config] = seconds(_cut(shape, {kernel: config}), kernel)
        except OutOfResources:
            if config == rule:
                raise
            log.debug("%s does not fit: %s", kernel, config)
    best = min(times, key=times.__getitem__)
    log.info("%s: %s in %.1f us; the rule's in %.1f us", kernel, best, times[best] * 1e6, times[rule] * 1e6)
    return best


def _kept(file: Path) -> dict[str, Config] | None:
    """What an earlier run found; None where there is nothing that can be read."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {kernel: Config(**found[kernel]) for kernel in KERNELS}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read, tiles are measured again: %s", file, error)
        return None


def _keep(file: Path, key: str, choice: dict[str, Config]) -> None:
    """Under another name first, so that processes may share the folder. One that cannot be written costs a warning."""
    body = json.dumps({"for": json.loads(key)} | {name: asdict(config) for name, config in choice.items()})
    draft = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(body)
        draft.replace(file)
    except OSError as error:
        log.warning("tiles cannot be kept in %s (%s): the next start measures them again", file.parent, error)
