"""Who may import whom (docs/tour.md draws the floors). Read from the syntax tree, so a lazy import counts as well."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

# A module may import its own floor's package and any lower floor. Siblings on one floor do not know each other.
FLOORS = {
    "errors": 0,
    "api": 1,
    "settings": 2,
    "native": 2,
    "device": 2,
    "tracing": 2,
    "workload": 2,
    "paging": 2,
    "scheduling": 2,
    "costs": 2,
    "plugins": 3,
    "ray_session": 3,
    "model": 4,
    "structured": 5,
    "engine": 6,
    "bench": 7,
    "server": 7,
    "testing": 7,
    "sim": 8,
    "cluster": 8,
    "cli": 9,
}
HEAVY = {"torch", "numpy", "triton", "numba", "transformers"}
PLUGIN_MAY = ("paged_core.api", "paged_core.errors")
ATTENTION_MAY = (*PLUGIN_MAY, "paged_core.native", "paged_core.device")
ALLOCATOR_MAY = (*PLUGIN_MAY, "paged_core.paging")
SCHEDULER_MAY = (*PLUGIN_MAY, "paged_core.scheduling")
SAMPLER_MAY = (*PLUGIN_MAY, "paged_core.device")
LOADER_OR_EXECUTOR_MAY = (
    *PLUGIN_MAY,
    "paged_core.model",
    "paged_core.native",
    "paged_core.device",
    "paged_core.tracing",
    "paged_core.costs",
    "paged_core.ray_session",
    "paged_core.plugins.bootstrap",
)


@dataclass(frozen=True)
class Import:
    """One imported module or name by its full dotted path; whether only the type checker sees it, or only a call."""

    target: str
    line: int
    typing_only: bool = False
    deferred: bool = False


def imports(source: str, module: str) -> Iterator[Import]:
    """Every import of a module's source. `from a import b` yields `a.b`; relative ones are made absolute."""
    tree = ast.parse(source)
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    deferred = {inner for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in guarded, node in deferred)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = ".".join(module.split(".")[: -node.level])
                base = f"{parent}.{base}" if base else parent
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, node in guarded, node in deferred)


def facade() -> dict[str, str]:
    """Where the names of `paged_core/__init__.py` really live, from its own table."""
    tree = ast.parse((ROOT / "paged_core/__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("paged_core/__init__.py has no table _HOMES")


def resolve(target: str) -> str:
    """Follow the package's lazy names home: `paged_core.hookimpl` is `paged_core.api.hookspecs.hookimpl`."""
    head, _, name = target.rpartition(".")
    return f"{facade()[name]}.{name}" if head == "paged_core" and name in facade() else target


def floor_of(target: str) -> str | None:
    """The floor a dotted path stands on, or None when it is not one of ours (or is the bare package)."""
    parts = resolve(target).split(".")
    return parts[1] if parts[0] == "paged_core" and len(parts) > 1 and parts[1] != "__version__" else None


def floor_violations(source: str, module: str) -> list[str]:
    """Imports that climb, or cross to a sibling."""
    mine = module.split(".")[1]
    found = []
    for item in imports(source, module):
        theirs = floor_of(item.target)
        if theirs is None or theirs == mine:
            continue
        if theirs not in FLOORS:
            found.append(f"{module}:{item.line} imports {item.target}, which stands on no floor")
        elif FLOORS[theirs] >= FLOORS[mine] or theirs == "testing":
            found.append(f"{module}:{item.line} ({mine}) imports {item.target} ({theirs})")
    return found


def plugin_violations(source: str, package: str, plugin_id: str) -> list[str]:
    """What a plugin may not import: the core beyond its contract, and any other plugin."""
    kinds = {"alloc": ALLOCATOR_MAY, "sched": SCHEDULER_MAY, "attn": ATTENTION_MAY, "sample": SAMPLER_MAY}
    may = kinds.get(plugin_id.split("_")[0], PLUGIN_MAY)
    if plugin_id.startswith(("load_", "exec_")):
        may = LOADER_OR_EXECUTOR_MAY
    found = []
    for item in imports(source, package):
        target = resolve(item.target)
        head = target.split(".")[0]
        ours = head.startswith("paged_") and head != package.split(".")[0]
        allowed = any(target == path or target.startswith(path + ".") for path in may)
        if ours and not allowed and target != "paged_core.__version__":
            found.append(f"{package}:{item.line} imports {item.target}")
    return found


def plugin_imports(source: str, module: str) -> list[str]:
    """Concrete first-party plugins that a file imports."""
    packages = {folder.name for folder in (ROOT / "plugins").glob("*/paged_*")}
    return [item.target for item in imports(source, module) if item.target.split(".")[0] in packages]


def heavy_imports(source: str, module: str) -> list[str]:
    """Heavy packages a contract file imports at run time; numpy may be imported by a call, torch not even so."""
    found = []
    for item in imports(source, module):
        head = item.target.split(".")[0]
        if head in HEAVY and not item.typing_only and not (head == "numpy" and item.deferred):
            found.append(f"{module}:{item.line} imports {item.target}")
    return found


def environment_reads(source: str) -> list[int]:
    """Lines that touch the process environment."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv", "os.environb"}:
            lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            lines += [node.lineno for alias in node.names if alias.name in {"environ", "getenv", "environb"}]
    return lines


def module_name(path: Path, base: Path) -> str:
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts)  # `__init__` stays: it makes relative imports resolve as Python does


CORE = sorted((ROOT / "paged_core").rglob("*.py"))
CORE_FLOORS = [path for path in CORE if path != ROOT / "paged_core/__init__.py"]
CONFORMANCE = sorted((ROOT / "conformance/paged_conformance").rglob("*.py"))
PLUGINS = sorted(path for path in (ROOT / "plugins").glob("*/paged_*/**/*.py"))


MAY_READ_THE_ENVIRONMENT = (
    ROOT / "paged_core/settings.py",
    # TRITON_INTERPRET is Triton's switch, not ours; asking Triton for it would import it whenever a CPU starts (85 ms)
    ROOT / "plugins/attn_triton/paged_attn_triton/provider.py",
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", CORE_FLOORS, ids=name_of)
def test_core_module_imports_only_lower_floors(path: Path) -> None:
    assert floor_violations(path.read_text(), module_name(path, ROOT)) == []


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_core_module_knows_no_concrete_plugin(path: Path) -> None:
    assert plugin_imports(path.read_text(), module_name(path, ROOT)) == []


@pytest.mark.parametrize("path", PLUGINS, ids=name_of)
def test_plugin_imports_only_the_contract(path: Path) -> None:
    folder = ROOT / "plugins" / path.relative_to(ROOT / "plugins").parts[0]
    assert plugin_violations(path.read_text(), module_name(path, folder), folder.name) == []


@pytest.mark.parametrize("path", CONFORMANCE, ids=name_of)
def test_conformance_suite_knows_no_concrete_plugin(path: Path) -> None:
    assert plugin_imports(path.read_text(), module_name(path, ROOT / "conformance")) == []


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_product_does_not_import_the_conformance_suite(path: Path) -> None:
    found = [item.target for item in imports(path.read_text(), module_name(path, ROOT))]
    assert [target for target in found if target.split(".")[0] == "paged_conformance"] == []


@pytest.mark.parametrize("path", sorted((ROOT / "paged_core/api").rglob("*.py")), ids=name_of)
def test_contract_sees_tensors_only_as_types(path: Path) -> None:
    assert heavy_imports(path.read_text(), module_name(path, ROOT)) == []


@pytest.mark.parametrize("path", [*CORE, *PLUGINS, *CONFORMANCE], ids=name_of)
def test_environment_is_read_in_settings_only(path: Path) -> None:
    if path in MAY_READ_THE_ENVIRONMENT:
        return
    assert environment_reads(path.read_text()) == []


@pytest.mark.parametrize("path", [*CORE, *PLUGINS], ids=name_of)
def test_pluggy_is_used_by_the_loader_and_the_hookspecs_only(path: Path) -> None:
    module = module_name(path, ROOT)
    if module == "paged_core.api.hookspecs" or module.startswith("paged_core.plugins"):
        return
    assert [item for item in imports(path.read_text(), module) if item.target.split(".")[0] == "pluggy"] == []


def test_core_import_of_a_plugin_is_caught() -> None:
    assert plugin_imports("def f():\n    from paged_attn_cpu import Provider", "paged_core.engine.engine") != []


def test_there_is_something_to_check() -> None:
    assert len(CORE) > 15
    assert len(CONFORMANCE) > 15
    assert {path.relative_to(ROOT / "plugins").parts[0] for path in PLUGINS} == {
        path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml")
    }


# The checks themselves are checked: each rule must catch its smallest offence.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("paged_core.api.batch", "from paged_core.engine import ledger"),
        ("paged_core.model.runner", "import paged_core.engine.llm"),
        ("paged_core.engine.engine", "def f():\n    from paged_core import LLM, cli"),
        ("paged_core.engine.engine", "from paged_core.testing.models import tiny"),
        ("paged_core.cli.run", "from paged_core.testing.models import tiny"),
        ("paged_core.server.app", "from paged_core.bench import load"),
        ("paged_core.model.runner", "from ..engine import llm"),
        ("paged_core.model.runner", "if TYPE_CHECKING:\n    from paged_core import LLM"),
        ("paged_core.model.runner", "from paged_core.nowhere import x"),
    ],
)
def test_climbing_import_is_caught(module: str, source: str) -> None:
    assert len(floor_violations(source, module)) == 1


def test_descending_import_passes() -> None:
    source = "from paged_core.errors import PagedError\nfrom .ledger import Ledger\nfrom paged_core import hookimpl"
    assert floor_violations(source, "paged_core.engine.engine") == []


@pytest.mark.parametrize(
    ("plugin_id", "source", "caught"),
    [
        ("attn_x", "from paged_core.model import decoder", True),
        ("attn_x", "from paged_core import LLM", True),
        ("attn_x", "import paged_attn_torch", True),
        ("attn_x", "from paged_core.apiary import x", True),
        ("load_x", "from paged_core.engine.llm import LLM", True),
        ("exec_x", "from paged_core.plugins.registry import load", True),
        (
            "attn_x",
            "from paged_core import hookimpl\nfrom paged_core.api.batch import Batch\nfrom . import kernels",
            False,
        ),
        ("attn_x", "from paged_core.native.team import Team", False),
        ("sample_x", "from paged_core.native.team import Team", True),
        ("sample_x", "from paged_core.device.upload import uploaded", False),
        ("sched_x", "from paged_core.device.upload import uploaded", True),
        ("load_x", "from paged_core.model import weights", False),
        ("alloc_x", "from paged_core.paging import allocator", False),
        ("sched_x", "from paged_core.paging import allocator", True),
        ("sched_x", "from paged_core.scheduling import running_first", False),
        ("exec_x", "from paged_core.plugins.bootstrap import bootstrap", False),
        ("exec_x", "from paged_core.costs import work", False),
        ("sched_x", "from paged_core.costs import work", True),
    ],
)
def test_plugin_rule_catches_its_offence(plugin_id: str, source: str, caught: bool) -> None:
    assert bool(plugin_violations(source, f"paged_{plugin_id}.__init__", plugin_id)) is caught


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_environment_read_is_caught(source: str) -> None:
    assert environment_reads(source) != []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("import torch", True),
        ("import numpy as np", True),
        ("def f():\n    import torch", True),
        ("def f():\n    import numpy", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", False),
    ],
)
def test_heavy_import_in_the_contract_is_caught(source: str, caught: bool) -> None:
    assert bool(heavy_imports(source, "paged_core.api.batch")) is caught
