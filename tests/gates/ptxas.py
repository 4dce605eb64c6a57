"""What ptxas says of a kernel: registers, stack, spills and shared memory, read from the lines of its option -v."""

from __future__ import annotations

import re

_NUMBERS = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
}


def resources(log: str, dynamic_shared: int) -> dict[str, int]:
    """The figures of the one kernel that `log` speaks of, with the shared memory it is launched with, in bytes.

    Raises ValueError where a figure is not there exactly once: another ptxas may word it otherwise.
    """
    found = {}
    for name, pattern in _NUMBERS.items():
        numbers = re.findall(pattern, log)
        if len(numbers) != 1:
            raise ValueError(f"ptxas gives {len(numbers)} figures for {name}, not one, in:\n{log}")
        found[name] = int(numbers[0])
    static = re.search(r"(\d+) bytes smem", log)
    return found | {"static_shared": int(static[1]) if static else 0, "dynamic_shared": dynamic_shared}
