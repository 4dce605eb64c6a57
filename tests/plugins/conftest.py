"""Fake installations: dist-info folders and modules in a temporary folder, and the checked-in ones beside this file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.api.scheduler import SchedulerNeed
from paged_core.plugins import Plugins, load_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent

HEADER = """
from paged_core import hookimpl
from paged_core.api.provider import Fit, PluginSettings, Provider
"""


class Site:
    """A folder that stands in for site-packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> Path:
        """Write a module; returns its file."""
        path = self.folder / f"{name}.py"
        path.write_text(HEADER + source)
        return path

    def dist(self, name: str, version: str, points: dict[str, str], folder: str = "") -> None:
        """Write the metadata of an installed distribution with these entry points, id to value."""
        info = self.folder / folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"{id} = {value}" for id, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[paged_core]", *lines, ""]))

    def plugin(self, id: str, source: str, dist: str = "", version: str = "1.0") -> str:
        """Install a plugin of one module in a distribution of its own; returns the module's name."""
        module = f"site_{id}"
        self.module(module, source)
        self.dist(dist or f"dist-{id.replace('_', '-')}", version, {id: module})
        return module

    def load(self, **options: Any) -> Plugins:
        """Load what is installed here and nothing else."""
        return load_plugins(path=[str(self.folder)], **options)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before, path = set(sys.modules), list(sys.path)
    yield Site(folder)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def provider() -> Any:
    """A function that writes the source of a scheduler provider (or of another kind, with its hook)."""

    def source(
        name: str, *, hook: str = "paged_scheduler", extra: str = "", reasons: str = "[]", **attributes: Any
    ) -> str:
        fields = {"kind": "sched", "api": 1, "summary": "a test"} | attributes
        lines = "\n".join(f"    {key} = {value!r}" for key, value in fields.items())
        return f"""
class P_{name}(Provider):
    name = {name!r}
{lines}
{extra}
    def probe(self, need):
        return Fit.judge({reasons}, ["a hint"])
    def create(self, need, settings, plugins):
        return ({name!r}, settings)
@hookimpl
def {hook}():
    return P_{name}()
"""

    return source


@pytest.fixture
def need() -> SchedulerNeed:
    return SchedulerNeed(token_budget=64, max_num_seqs=8, max_len=64, block_size=4, num_blocks=10)


@pytest.fixture
def fakes() -> Path:
    """The folder with the checked-in fake installation."""
    return HERE / "fake"


@pytest.fixture
def sample() -> Path:
    """The pip-installable sample plugin."""
    return HERE / "sample"
