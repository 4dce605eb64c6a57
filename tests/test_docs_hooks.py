"""docs/hooks.md against the code: every hook with its exact signature, every provider field, every setting.

A failing test prints the line that the page lacks, ready to paste.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from paged_core.api import hookspecs
from paged_core.api.provider import KINDS, Fit, PluginRegistry, Provider
from paged_core.plugins.hints import FIRST_PARTY, distribution_of
from paged_core.settings import OTHER_VARIABLES, PREFIX, Settings

if TYPE_CHECKING:
    from pathlib import Path

HOOKS = {name: value for name, value in vars(hookspecs).items() if name.startswith("paged_")}


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs/hooks.md").read_text()


def signature(name: str, function: Any) -> str:
    """A function's signature as its source writes it, with `self` left out."""
    written = inspect.signature(function)
    parameters = [parameter for parameter in written.parameters.values() if parameter.name != "self"]
    return name + str(written.replace(parameters=parameters)).replace("'", "")


def cell(text: object) -> str:
    return str(text).replace("|", r"\|")


def row(*cells: object) -> str:
    return f"| {' | '.join(map(cell, cells))} |"


def table_after(page: str, heading: str) -> list[str]:
    """The rows (without head) of the first table below a heading."""
    lines = page[page.index(f"\n{heading}\n") :].splitlines()[2:]
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return rows


def test_every_hook_is_described_with_its_exact_signature(page):
    headings = re.findall(r"^### `(paged_\w+)`$", page, re.MULTILINE)
    assert headings == list(HOOKS)
    for name, hook in HOOKS.items():
        section = page[page.index(f"### `{name}`") :]
        section = section[: section.find("\n#", 5)]
        assert f"    {signature(name, hook)}\n" in section
        assert ("firstresult" in section) == bool(hook.paged_core_spec["firstresult"])


def test_the_kinds_are_listed(page):
    expected = [
        row(i.kind, f"`--{i.kind}`", f"`{i.prefix}`", f"`{i.hook}`", i.title, i.api, i.min_api) for i in KINDS.values()
    ]
    assert table_after(page, "## The seven kinds") == expected


def test_every_provider_field_and_method_is_listed(page):
    rows = table_after(page, "## Provider")
    for name, annotation in Provider.__annotations__.items():
        kind = annotation.removeprefix("ClassVar[").removesuffix("]")
        start = f"| `{name}` | `{cell(kind)}` |"
        assert [line for line in rows if line.startswith(start)], f"lacks a row that begins {start}"
    assert len(rows) == len(Provider.__annotations__)
    for name in ("probe", "create", "missing_capabilities"):
        assert f"`{signature(name, getattr(Provider, name))}`" in page
    for name in ("create", "recipe"):
        assert f"`{signature(f'plugins.{name}', getattr(PluginRegistry, name))}`" in page
    assert f"`Fit({', '.join(field.name for field in fields(Fit))})`" in page


def test_every_setting_is_listed(page):
    expected = []
    for name, field in Settings.model_fields.items():
        default = "{}" if field.default_factory else field.default
        kind = Settings.__annotations__[name]
        expected.append(row(f"`{name}`", f"`{PREFIX}{name.upper()}`", f"`{kind}`", f"`{default}`", field.description))
    assert table_after(page, "## Settings") == expected


def test_the_other_variables_are_listed(page):
    expected = [row(f"`{name}`", meaning) for name, meaning in OTHER_VARIABLES.items()]
    assert table_after(page, "### Other variables") == expected


def test_first_party_hints_carry_the_prefix_of_a_kind():
    for plugin in FIRST_PARTY:
        assert any(plugin.startswith(info.prefix) for info in KINDS.values())
        assert distribution_of(plugin).removeprefix("paged-").replace("-", "_") == plugin
