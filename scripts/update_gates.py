"""Write tests/gates/resources.json anew: compile every kernel of both GPU backends and record what it takes.

    python scripts/update_gates.py [attn_cuda] [attn_triton]

Needs no GPU and no driver. Prints what changed and what the gate will object to: a kernel that spills gets an empty
reason, which fails until somebody writes there why it is worth it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/gates"))
import gate_table as table


def changes(old: table.Kernels, new: table.Kernels) -> list[str]:
    """One line for each kernel that is new, gone or different."""
    lines = [f"+ {name} {new[name]}" for name in new if name not in old]
    lines += [f"- {name}" for name in old if name not in new]
    for name in new:
        if name in old:
            figures = [
                f"{figure} {old[name].get(figure)} -> {value}"
                for figure, value in new[name].items()
                if old[name].get(figure) != value
            ]
            lines += [f"  {name}: {', '.join(figures)}"] if figures else []
    return lines


def unexplained(new: dict[str, Any]) -> list[str]:
    """One line for each row that spills and has no reason, or does not fit a GPU: the gate fails until it is gone."""
    lines = []
    for plugin in new:
        for arch in table.ARCHS:
            rows = table.of_arch(new, plugin, arch)
            faults = table.objections(rows, rows, table.largest_block(plugin, arch))
            lines += [f"{plugin} {arch} {fault}" for fault in faults]
    return lines


def main(plugins: list[str]) -> None:
    """Measure the named plugins, all without names, and rewrite their parts of the table as it is by then."""
    for plugin in plugins or list(table.PROGRAMS):
        found = {arch: table.measure(plugin, arch) for arch in table.ARCHS}  # minutes
        old = table.read() if table.FILE.exists() else {}
        new = dict(old) | {plugin: table.renewed(old, plugin, found)}
        for arch in table.ARCHS:
            for line in changes(table.of_arch(old, plugin, arch), table.of_arch(new, plugin, arch)):
                print(arch, line)
        table.write(dict(sorted(new.items())))
    for line in unexplained(table.read()):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
