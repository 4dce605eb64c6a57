"""One uniform number per (seed, branch, position): a counter-based generator, so there is no state to keep or lose.

The mixer is SplitMix64's finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def stream_key(seed: int, branch: int) -> int:
    """The 64-bit key of one branch's stream. `seed` may be any integer; it counts modulo 2**64."""
    keys = np.array([seed & _MASK], dtype=np.uint64)
    counter = np.array([branch + 1], dtype=np.uint64)
    return int(_mix(_mix(keys + np.uint64(GOLDEN)) ^ _mix(counter * np.uint64(GOLDEN)))[0])


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.int32]) -> NDArray[np.float64]:
    """Numbers in (0, 1) with 53 random bits, one per (key, position); arrays of one length."""
    counter = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    bits = _mix(keys + counter) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) * 2.0**-53


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
