"""`paged-core new-plugin KIND NAME`: a complete plugin package to start from, from the templates beside this file."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import click

from paged_core import __version__
from paged_core.api.provider import KINDS
from paged_core.cli.command import Command, Option
from paged_core.cli.report import note
from paged_core.errors import ConfigError
from paged_core.plugins.hints import FIRST_PARTY
from paged_core.settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

HELP = """Write a plugin package to start from: KIND is loader, attn, alloc, sched, preempt, sampler or executor; NAME
is what users will say, as in --sched=NAME.

The package works as it is and passes the conformance suite of its kind. Nothing is ever overwritten.
"""

_API_FILES = {
    "loader": "loader.py",
    "attn": "attention.py",
    "alloc": "allocator.py",
    "sched": "scheduler.py",
    "preempt": "preemption.py",
    "sampler": "sampler.py",
    "executor": "executor.py",
}
_JUDGE_LOADER = (
    "python tests/sample.py sample && "
    "pytest --pyargs paged_conformance.suite --paged-loader={} --paged-loader-sample=sample"
)
"""No model suits every loader: its author gives the suite one."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def new_plugin(parameters: Mapping[str, Any]) -> None:
    """Write the package and say where it is."""
    folder = write_plugin(parameters["kind"], parameters["name"], Path(parameters["output"]))
    click.echo(folder)
    note(f"next: cd {folder} && pip install -e '.[test]' && pytest")


def write_plugin(kind: str, name: str, output: Path) -> Path:
    """Write the package `paged-<prefix>-<name>` into the folder `output`; returns its path.

    Raises ConfigError for an unknown kind, a name that cannot be a plugin's, and a path that exists already.
    """
    if kind not in KINDS:
        raise ConfigError(f"no kind {kind!r} of plugins{did_you_mean(kind, KINDS)} (kinds: {', '.join(KINDS)})")
    words = _words(kind, name)
    folder = output / words["dist"]
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists already and is left as it is; choose another NAME or --output")
    for path, text in _files(kind, words).items():
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from error
    return folder


def _words(kind: str, name: str) -> dict[str, str]:
    """What the templates' placeholders stand for. The prefix of the kind may be part of `name`."""
    info = KINDS[kind]
    short = name.removeprefix(info.prefix)
    plugin = info.prefix + short
    if not _NAME.fullmatch(short):
        raise ConfigError(
            f"{name!r} cannot be a plugin's name: small letters, digits and single underscores, a letter first"
        )
    if plugin in FIRST_PARTY:
        raise ConfigError(f"{plugin} is the name of {FIRST_PARTY[plugin].summary} of this project; choose another")
    major, minor = __version__.split(".")[:2]
    return {
        "kind": kind,
        "id": plugin,
        "short": short,
        "package": f"paged_{plugin}",
        "dist": f"paged-{plugin.replace('_', '-')}",
        "Class": "".join(part.capitalize() for part in short.split("_")),
        "title": info.title,
        "article": "An" if info.title[0] in "aeiou" else "A",
        "api_file": _API_FILES[kind],
        "model": "; a loader or executor may use `paged_core.model` too" if kind in ("loader", "executor") else "",
        "judge": _JUDGE_LOADER.format(plugin) if kind == "loader" else f"paged-core conformance --{kind}={short}",
        "report": "--paged-report" if kind == "loader" else "--report",
        "core": f"{major}.{minor}",
        "next_core": f"{major}.{int(minor) + 1}",
    }


def _files(kind: str, words: Mapping[str, str]) -> dict[str, str]:
    """Path in the package -> text."""
    package, is_loader = words["package"], kind == "loader"
    sources = {
        "pyproject.toml": "pyproject.toml.tmpl",
        "README.md": "README.md.tmpl",
        ".github/workflows/ci.yml": "ci.yml.tmpl",
        "tests/test_plugin.py": "test_plugin.py.tmpl",
        "tests/test_conformance.py": "test_conformance_loader.py.tmpl" if is_loader else "test_conformance.py.tmpl",
        f"{package}/__init__.py": f"{kind}.py.tmpl",
    }
    if is_loader:
        sources["tests/sample.py"] = "sample.py.tmpl"
    templates = resources.files("paged_core.cli") / "templates"
    files = {
        path: Template((templates / source).read_text(encoding="utf-8")).substitute(words)
        for path, source in sources.items()
    }
    return {**files, f"{package}/py.typed": ""}


new_plugin_command = Command(
    "new-plugin",
    new_plugin,
    [
        click.Argument(["kind"]),
        click.Argument(["name"]),
        Option(
            ["--output"],
            section="Options",
            default=".",
            metavar="DIR",
            help="Folder in which the package's own folder is made. [default: .]",
        ),
    ],
    HELP,
)
