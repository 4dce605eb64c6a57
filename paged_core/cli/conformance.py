"""`paged-core conformance`: judge plugins by the conformance suite. Prints the pytest command and runs just that."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from paged_core.api.provider import KINDS
from paged_core.cli.command import Command, Option
from paged_core.cli.report import note
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CANDIDATES = "Candidates (none: every plugin that is registered)"
_RUN = "Run"
_NEEDED = ("pytest", "hypothesis", "paged_conformance")
_EXIT_CODES = {0: 0, 1: 1, 3: 3, 4: 2, 5: 2}
"""pytest's exit code -> ours: 0, 1 and 3 are the suite's verdicts; 4 and 5 are wrong names or nothing to run."""


def pytest_arguments(parameters: Mapping[str, Any]) -> list[str]:
    """The arguments of pytest for parsed parameters."""
    words = ["--pyargs", "paged_conformance.suite", "-p", "no:cacheprovider"]
    for kind in (*KINDS, "plugin"):
        words += [f"--paged-{kind}={name}" for name in parameters[kind]]
    words += [f"--paged-loader-sample={path}" for path in parameters["loader_sample"]]
    for name in ("device", "report", "badge", "known_gaps"):
        if parameters[name] is not None:
            words.append(f"--paged-{name.replace('_', '-')}={parameters[name]}")
    return [*words, "--paged-quick"] if parameters["quick"] else words


def _conformance(parameters: Mapping[str, Any]) -> int:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the conformance suite needs {' and '.join(missing)}, not installed here: "
            'pip install "paged-core[conformance]"'
        )
    command = [sys.executable, "-m", "pytest", *pytest_arguments(parameters)]
    note(shlex.join(command))
    # A process of its own: pytest rewrites the asserts of the suite, which must not be imported before.
    return _EXIT_CODES.get(subprocess.run(command, check=False).returncode, 1)


def _options() -> list[click.Option]:
    options: list[click.Option] = [
        Option([f"--{kind}"], section=_CANDIDATES, multiple=True, metavar="NAME", help=f"A {info.title}. Repeatable.")
        for kind, info in KINDS.items()
    ]
    more = "Load one more plugin: a module name, a .py file or a package folder. Repeatable."
    sample = "A sound small model in the format of the judged loader. Repeatable."
    gaps = "The pyproject.toml with the known gaps. Default: that of the current folder."
    device = click.Choice(["cpu", "cuda"])
    options += [
        Option(["--plugin"], section=_CANDIDATES, multiple=True, metavar="MODULE", help=more),
        Option(["--loader-sample"], section=_CANDIDATES, multiple=True, metavar="PATH", help=sample),
        Option(["--known-gaps"], section=_CANDIDATES, metavar="FILE", help=gaps),
        Option(["--device"], section=_RUN, type=device, help="Where candidates run. Default: cpu."),
        Option(["--quick"], section=_RUN, is_flag=True, help="Fewer examples: about 20 seconds a kind."),
        Option(["--report"], section=_RUN, metavar="FILE", help="Write versions, outcomes and verdicts as JSON."),
        Option(["--badge"], section=_RUN, metavar="FILE", help="Write a badge for a shields.io endpoint."),
    ]
    return options


conformance_command = Command(
    "conformance",
    _conformance,
    _options(),
    "Judge plugins by the conformance suite.\n\nExit codes: 0 conformant, 1 not conformant, 2 bad input, 3 not run "
    "(the hardware is not here).",
)
