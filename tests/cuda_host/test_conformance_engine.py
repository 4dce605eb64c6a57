"""The conformance suite over the checked emulation: memory, blocks, contract, whole engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_emulation import parts


@pytest.mark.parametrize("name", ["memory", "engine"])
def test_part_of_the_suite(name: str) -> None:
    parts.check(parts.PARTS[name])


def test_every_part_is_run_and_every_file_belongs_to_one() -> None:
    import paged_conformance.suite

    suite = Path(next(iter(paged_conformance.suite.__path__)))
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_conformance_*.py"))
    assert [name for name in parts.PARTS if here.count(f'"{name}"') != 1] == []
    takes_attention = {path.name for path in suite.glob("test_*.py") if "attn: Candidate" in path.read_text()}
    assert takes_attention | {"test_contract.py"} == {file for part in parts.PARTS.values() for file in part.files}
