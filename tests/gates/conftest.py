"""Makes the modules beside the tests importable, as they are for the programs that the gates start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gate_table


@pytest.fixture
def hold():
    """Compile a plugin's kernels for an architecture and hold them against the table."""

    def check(plugin: str, arch: str) -> None:
        table = gate_table.read()
        compiler, found = gate_table.measure(plugin, arch)
        same = compiler == table[plugin]["compiler"]
        known, largest = gate_table.of_arch(table, plugin, arch), gate_table.largest_block(plugin, arch)
        faults = gate_table.objections(known, found, largest, same_compiler=same)
        assert not faults, "\n".join([f"{plugin} for {arch} ({compiler}):", *faults])
        if not same:
            pytest.skip(f"{compiler} is here, the table is of {table[plugin]['compiler']}: judged by spills only, none")

    return check
