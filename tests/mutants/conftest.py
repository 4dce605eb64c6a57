"""Gives the tests of this folder the harness beside them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="session")
def harness() -> ModuleType:
    """harness.py: `run_suite` and `assert_all_die`."""
    spec = importlib.util.spec_from_file_location("mutant_harness", Path(__file__).with_name("harness.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
