"""A ratchet on size: the maxima in `size_limits.json` hold, and when the code shrinks they must be lowered with it."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
LIMITS_FILE = Path(__file__).with_name("size_limits.json")
HARD_LIMITS = {"file_lines": 400, "function_lines": 60, "parameters": 8}
KERNELS = ("jit", "kernel", "emit")  # in the names of decorators that compile a function
# How far a measure may fall below its limit before the limit has to follow; spares a commit for every deleted line.
SLACK = {"file_lines": 20, "function_lines": 5, "parameters": 1}


@dataclass(frozen=True)
class Size:
    """One measured thing: which measure, how big, where."""

    measure: str
    value: int
    place: str


def sizes(source: str, place: str) -> Iterator[Size]:
    """File lines, function lines and parameters of one file. A kernel's parameters are not counted: its compiler
    takes flat arguments only."""
    yield Size("file_lines", len(source.splitlines()), place)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = f"{place}:{node.lineno} {node.name}"
        assert node.end_lineno is not None
        yield Size("function_lines", node.end_lineno - node.lineno + 1, where)
        if not any(name in ast.unparse(decorator) for decorator in node.decorator_list for name in KERNELS):
            yield Size("parameters", num_parameters(node.args), where)


def num_parameters(arguments: ast.arguments) -> int:
    """Parameters a caller fills in; `self` and `cls` are not among them."""
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def largest() -> dict[str, Size]:
    """The largest of each measure over the core and every plugin, tests left out."""
    files = [*(ROOT / "paged_core").rglob("*.py"), *(ROOT / "plugins").glob("*/paged_*/**/*.py")]
    best: dict[str, Size] = {}
    for path in files:
        for size in sizes(path.read_text(), str(path.relative_to(ROOT))):
            if size.measure not in best or size.value > best[size.measure].value:
                best[size.measure] = size
    return best


@pytest.mark.parametrize("measure", HARD_LIMITS)
def test_nothing_outgrows_its_limit(measure: str) -> None:
    limit = json.loads(LIMITS_FILE.read_text())[measure]
    size = largest()[measure]
    assert limit <= HARD_LIMITS[measure], f"the limit of {measure} may not exceed {HARD_LIMITS[measure]}"
    assert size.value <= limit, f"{size.place} has {size.value} {measure}; the limit is {limit}: split it"
    assert size.value >= limit - SLACK[measure], (
        f"{measure} fell to {size.value}: lower its limit in {LIMITS_FILE.name}"
    )


def test_the_measures_measure() -> None:
    source = (
        "def f(a, b, *, c):\n    def g(self):\n        return a\n    return g\n@njit\ndef k(a, b, c, d):\n    pass\n"
    )
    measured = {(size.measure, size.place.split()[-1]): size.value for size in sizes(source, "x")}
    assert measured == {
        ("file_lines", "x"): 7,
        ("function_lines", "f"): 4,
        ("parameters", "f"): 3,
        ("function_lines", "g"): 2,
        ("parameters", "g"): 0,
        ("function_lines", "k"): 2,
    }
