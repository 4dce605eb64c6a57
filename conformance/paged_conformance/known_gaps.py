"""Known gaps: tests that a plugin's author admits to fail, each with a reason and a link. They live beside the plugin:

    # pyproject.toml
    [tool.paged-conformance.known-gaps]
    "test_attention_features.py::test_softcap[attn_mine]" = "no soft cap on this chip yet: https://.../issues/7"

Strict in both directions: a known gap that passes is a failure, and so is one whose id matches no test.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Set
    from pathlib import Path


def read_known_gaps(folder: Path, named: str | None) -> dict[str, str]:
    """Test id -> reason, of the file `named` (relative to `folder`) or else of `folder`/pyproject.toml.

    Raises pytest.UsageError when the named file is not there, the file cannot be read, or an entry lacks its reason
    or link.
    """
    path = folder / (named or "pyproject.toml")
    if not path.is_file():
        if named is not None:
            raise pytest.UsageError(f"--paged-known-gaps {named}: no such file")
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{path}: cannot read known gaps: {error}") from error
    gaps = table.get("tool", {}).get("paged-conformance", {}).get("known-gaps", {})
    problems = [] if isinstance(gaps, dict) else ["[tool.paged-conformance.known-gaps] is no table"]
    problems += [
        f"known gap {name!r}: its value must be a reason with a link to an issue (https://...), not {reason!r}"
        for name, reason in (gaps.items() if isinstance(gaps, dict) else ())
        if not (isinstance(reason, str) and "://" in reason)
    ]
    if problems:
        raise pytest.UsageError("\n".join(f"{path}: {problem}" for problem in problems))
    return dict(gaps)


def stale_gaps(gaps: dict[str, str], ids: Set[str], files: Set[str], every_file: Set[str]) -> list[str]:
    """Gaps that match no test of this run, as far as it can tell.

    `ids` and `files` are what was collected, `every_file` the suite's files: a gap in a file that exists but was not
    collected is not judged.
    """
    return sorted(
        gap for gap in gaps if gap not in ids and (gap.split("::")[0] in files or gap.split("::")[0] not in every_file)
    )
