"""Variants: the systems of a comparison, made of one of them and what is to be tried in its place."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from paged_core.api.provider import KINDS
from paged_core.errors import ConfigError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paged_core.plugins import Plugins
    from paged_core.sim.system import System

FIELDS: Mapping[str, str] = {
    "device": "{}",
    "num_devices": "TP {}",
    "sched": "{}",
    "alloc": "{}",
    "preempt": "{}",
    "block_size": "blocks of {}",
}
"""What may vary, in the order of the systems' names, and how a name says the value."""


def variants(base: System, choices: Mapping[str, Sequence[Any]]) -> dict[str, System]:
    """Every combination of `choices` (by the names in `FIELDS`) put into `base`, by a name that says what varies.

    A plugin may come with settings of its own, NAME:KEY=VALUE:KEY=VALUE, which are added to the system's tables: so one
    plugin can be compared with itself; a name shows the values. What has one choice or none is in no name; without any
    variation the name is the scheduler's. ConfigError for text that is no such choice, or that is there twice.
    """
    axes = [(name, choices.get(name) or (getattr(base, name),)) for name in FIELDS]
    registry = bootstrap(Settings.load(plugin_modules=base.plugin_modules))
    found: dict[str, System] = {}
    for values in product(*(axis for _, axis in axes)):
        chosen = dict(zip(FIELDS, values, strict=True))
        parts = [FIELDS[name].format(_shown(chosen[name])) for name, axis in axes if len(axis) > 1]
        label = ", ".join(parts) or _shown(chosen["sched"])
        if label in found:
            raise ConfigError(f"{label} is asked for twice")
        found[label] = _with(base, chosen, registry)
    return found


def _shown(value: Any) -> str:
    """`contiguous:reservation=max` is shown as `contiguous max`."""
    name, *pairs = str(value).split(":")
    return " ".join([name, *(pair.partition("=")[2] for pair in pairs)])


def _with(base: System, chosen: Mapping[str, Any], registry: Plugins) -> System:
    tables = {plugin: dict(table) for plugin, table in base.plugins.items()}
    fields: dict[str, Any] = {}
    for field, value in chosen.items():
        if field not in KINDS:
            fields[field] = value
            continue
        fields[field], settings = _parsed(field, value)
        _merge(tables, _path(registry, field, fields[field]), settings)
    return replace(base, **fields, plugins=tables)


def _parsed(kind: str, text: str) -> tuple[str, dict[str, str]]:
    name, *pairs = text.split(":")
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals or not name:
            raise ConfigError(f"--{kind} {text}: NAME or NAME:KEY=VALUE, more of these with colons between them")
        settings[key] = value
    return name, settings


def _path(registry: Plugins, kind: str, name: str) -> list[str]:
    """Where the plugin's settings are in the tables. A name that is not installed is left to whoever selects by it."""
    record = registry.records.get(KINDS[kind].prefix + name) or registry.records.get(name)
    if record is None:
        return []
    return [record.plugin] if record.alone else [record.plugin, record.name]


def _merge(tables: dict[str, dict[str, Any]], path: list[str], settings: Mapping[str, str]) -> None:
    if not settings:
        return
    if not path:
        raise ConfigError(f"settings {', '.join(settings)} are given for a plugin that is not named or not installed")
    table: dict[str, Any] = tables
    for key in path:
        table[key] = dict(table.get(key, {}))
        table = table[key]
    table.update(settings)
