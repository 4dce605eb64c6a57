"""Devices: what well-known accelerators can do, by their makers' data sheets (dense 16-bit products)."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """One device, and what of its numbers software reaches.

    memory_bytes      all of it
    bytes_per_s       memory bandwidth, by data sheet
    ops_per_s         16-bit products with 32-bit sums, by data sheet
    link_bytes_per_s  to the next device, one way: what an all-reduce passes through
    read_share, ops_share   of bandwidth and operations that real kernels reach
    step_s, layer_s, sequence_s   what every step, layer and sequence of it take on top: launches, sampling
    all_reduce_s      what an all-reduce takes besides its bytes: a launch and a barrier
    usable_share      of the memory that weights, pool and working memory may take together
    """

    name: str
    memory_bytes: int
    bytes_per_s: float
    ops_per_s: float
    link_bytes_per_s: float
    read_share: float = 0.8
    ops_share: float = 0.6
    step_s: float = 2e-3
    layer_s: float = 4e-5
    sequence_s: float = 5e-6
    all_reduce_s: float = 2e-5
    usable_share: float = 0.9


_IN_2023 = {
    "read_share": 0.68,
    "ops_share": 0.58,
    "layer_s": 8e-5,
    "sequence_s": 6e-5,
    "all_reduce_s": 6e-5,
}
"""What the coefficients say that were published of the engine of that year, without graphs: see `calibrated`."""

DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("a100-40gb", 40 * GIB, 1.555e12, 312e12, 300e9, **_IN_2023),
        Device("a100-80gb", 80 * GIB, 2.039e12, 312e12, 300e9, **_IN_2023),
        Device("h100-80gb", 80 * GIB, 3.35e12, 989e12, 450e9),
        Device("h200", 141 * 10**9, 4.8e12, 989e12, 450e9),
        Device("l4", 24 * GIB, 300e9, 121e12, 16e9, all_reduce_s=5e-5),
    )
}
"""By name."""
_SHORT = {
    "a100-40g": "a100-40gb",
    "a100-80g": "a100-80gb",
    "a100": "a100-80gb",
    "h100": "h100-80gb",
    "h100-80g": "h100-80gb",
}


def find_device(name: str) -> Device:
    """The device of that name; `a100-40g` is as good as `a100-40gb`. ConfigError for an unknown one."""
    wanted = _SHORT.get(name.lower(), name.lower())
    if wanted not in DEVICES:
        close = get_close_matches(wanted, DEVICES, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"there is no device {name!r}{hint} Known are {', '.join(DEVICES)}")
    return DEVICES[wanted]
