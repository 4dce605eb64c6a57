"""The conformance suite's attention tests in parts of about equal length, for workers that share the files of tests."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

TESTS = Path(__file__).resolve().parents[2]
PLUGIN = TESTS / "cuda_host" / "attn_cuda_host"
CANDIDATE = "attn_cuda_checked"
SHAPES = "test_attention.py"  # most of its tests name an element type


@dataclass(frozen=True, slots=True)
class Part:
    """Files of the suite; `keep` is pytest's -k; `least` tests are in it, by parameters too."""

    files: tuple[str, ...]
    keep: str
    least: int


PARTS = {
    "fp32": Part((SHAPES,), "fp32", 49),
    "bf16": Part((SHAPES,), "bf16", 49),
    "fp16": Part((SHAPES,), "fp16", 49),
    "fp8": Part((SHAPES,), "fp8 or u8", 98),
    "attention": Part((SHAPES,), "not (fp32 or bf16 or fp16 or fp8 or u8)", 30),
    "laws": Part(("test_attention_laws.py", "test_attention_graphs.py", "test_attention_e4m3.py"), "", 37),
    "memory": Part(
        (
            "test_attention_memory.py",
            "test_attention_blocks.py",
            "test_attention_codes.py",
            "test_attention_native.py",
            "test_contract.py",
        ),
        "",
        78,
    ),
    "engine": Part(("test_engine_model.py", "test_cost_attention.py"), "", 7),
}


def check(part: Part) -> None:
    """Run a part over the checked backend; assert that its tests are there and pass."""
    (plugin,) = _harness().run_report("attn", [str(PLUGIN)], [CANDIDATE], part.files, part.keep)
    tests: dict[str, Any] = plugin["tests"]
    failures = {test: facts for test, facts in tests.items() if facts["outcome"] != "passed"}
    wrong = [f"{test}: {facts['outcome']} {facts.get('message', '')}" for test, facts in failures.items()]
    assert not wrong, "\n".join(wrong)
    assert len(tests) >= part.least, f"{len(tests)} tests, where {part.least} are known"


@cache
def _harness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutant_harness", TESTS / "mutants" / "harness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module
