"""Discovery: which plugins are installed, and what each one offers once it is imported."""

from __future__ import annotations

import email
import importlib
import re
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from paged_core.api import hookspecs
from paged_core.api.provider import KINDS, KindInfo, PluginSettings, Provider
from paged_core.errors import PluginLoadError
from paged_core.plugins.record import Owner, Source
from paged_core.settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = hookspecs.PROJECT
"""The entry-point group of plugins."""

HOOKS = [name for name in vars(hookspecs) if name.startswith("paged_")]


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows our hooks and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def normalized(dist: str) -> str:
    """A distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", dist).lower()


def one_line(error: BaseException) -> str:
    """An error's type and message without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")


def installed(path: Sequence[str] | None) -> tuple[list[Source], list[str]]:
    """The plugins installed on `path` (None: sys.path) ordered by id, and what is odd about the installations.

    Of two copies of one distribution the first on the path counts, as for imports.
    """
    owners: dict[tuple[str, str], list[Owner]] = defaultdict(list)
    first: dict[str, tuple[Owner, set[tuple[str, str]]]] = {}
    oddities = []
    found = distributions() if path is None else distributions(path=list(path))
    for dist in found:
        points = {(point.name, point.value) for point in dist.entry_points if point.group == GROUP}
        if not points:
            continue
        owner = _owner(dist)
        seen = first.setdefault(normalized(owner.dist), (owner, points))
        if seen[0] is owner:
            for point in points:
                owners[point].append(owner)
        elif seen[1] != points:
            oddities.append(
                f"distribution {owner.dist} is installed twice: version {seen[0].version} is used, version "
                f"{owner.version} with other plugins ({', '.join(sorted(id for id, _ in points))}) is hidden by it; "
                f"uninstall {owner.dist} until pip finds no more, then install it again"
            )
    return [Source(id, value, tuple(owners[id, value])) for id, value in sorted(owners)], oddities


def _owner(dist: Distribution) -> Owner:
    """Name and version by the metadata; an orphaned installation may have lost that file or its fields."""
    headers = email.message_from_string(dist.read_text("METADATA") or dist.read_text("PKG-INFO") or "")
    return Owner(str(headers.get("Name", "(no metadata)")), str(headers.get("Version", "?")))


def development_source(module: str) -> Source:
    """The plugin that `--plugin module` names: a dotted module, a .py file or a package folder.

    Its id is the last part of the name without a leading `paged_`.
    """
    is_path = module.endswith(".py") or "/" in module or "\\" in module
    last = Path(module).stem if is_path else module.rpartition(".")[2]
    return Source(last.removeprefix("paged_"), module)


def open_plugin(source: Source) -> tuple[object, list[Provider[Any, Any]]]:
    """Import a plugin and ask it for its providers. What it prints meanwhile goes to standard error.

    A plugin that fails half-way has registered nothing: it is tried in a manager of its own (case G05).
    Raises PluginLoadError, cause chained, whatever went wrong, SystemExit included. A plugin that hangs is not
    interrupted.
    """
    with redirect_stdout(sys.stderr):
        try:
            plugin = _resolve(source)
            return plugin, _offers(plugin)
        except KeyboardInterrupt:
            raise
        except PluginLoadError as error:
            raise PluginLoadError(f"{source} cannot be used: {error}") from error.__cause__
        except BaseException as cause:  # SystemExit and the panics of native extensions are no Exception
            raise PluginLoadError(f"{source} cannot be loaded: {one_line(cause)}") from cause


def _resolve(source: Source) -> object:
    if source.owners or not (source.value.endswith(".py") or "/" in source.value or "\\" in source.value):
        return EntryPoint(source.id, source.value, GROUP).load()
    path = Path(source.value).resolve()
    if not path.exists():
        raise PluginLoadError(f"there is no {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: its neighbours must not shadow anything installed
    module = importlib.import_module(path.stem)
    origin = Path(module.__file__ or "").resolve()
    if origin not in {path, path / "__init__.py"}:
        raise PluginLoadError(f"another module of the name {path.stem} comes first: {origin}; rename the file")
    return module


def _offers(plugin: object) -> list[Provider[Any, Any]]:
    manager = new_manager()
    manager.register(plugin)
    callers = manager.get_hookcallers(plugin) or []
    for caller in callers:
        if not caller.has_spec() and not all(impl.optionalhook for impl in caller.get_hookimpls()):
            raise PluginLoadError(f"it implements {caller.name}, which is no hook{did_you_mean(caller.name, HOOKS)}")
    implemented = {caller.name for caller in callers}
    unmarked = [name for name in HOOKS if callable(getattr(plugin, name, None)) and name not in implemented]
    if unmarked:
        raise PluginLoadError(f"{', '.join(unmarked)} lacks the decorator @paged_core.hookimpl")
    if not callers:
        raise PluginLoadError(
            f"{getattr(plugin, '__name__', plugin)} holds no function decorated with @paged_core.hookimpl"
        )
    if any(impl.wrapper or impl.hookwrapper for caller in callers for impl in caller.get_hookimpls()):
        raise PluginLoadError("it wraps a hook; wrap a backend instead: offer a provider that creates another by name")
    providers: list[Provider[Any, Any]] = []
    for info in KINDS.values():
        for impl in getattr(manager.hook, info.hook).get_hookimpls():
            offered = impl.function()
            several = offered if isinstance(offered, list | tuple) else [offered]
            providers += [_checked(provider, info) for provider in several]
    names = [provider.name for provider in providers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PluginLoadError(f"it offers {', '.join(twice)} twice")
    return providers


def _checked(provider: object, info: KindInfo) -> Provider[Any, Any]:
    """The object a hook returned, found to be a provider of the hook's kind. Raises with everything that is wrong."""
    if isinstance(provider, type):
        raise PluginLoadError(f"{info.hook} returned the class {provider.__name__}; return an instance of it")
    if not isinstance(provider, Provider):
        raise PluginLoadError(f"{info.hook} returned {provider!r}, which is no paged_core.api.provider.Provider")
    types = {"name": str, "kind": str, "api": int, "priority": int, "summary": str, "capabilities": frozenset}
    wrong = [
        f"its {attribute} is {getattr(provider, attribute, 'missing')!r}, not a {expected.__name__}"
        for attribute, expected in types.items()
        if not isinstance(getattr(provider, attribute, None), expected)
    ]
    if not wrong and provider.kind != info.kind:
        wrong.append(f"its kind is {provider.kind!r} but {info.hook} is the hook of kind {info.kind!r}")
    if not wrong and re.fullmatch(info.prefix + "[a-z0-9_]+", provider.name) is None:
        wrong.append(f"its name {provider.name!r} is not {info.prefix!r} and more lower-case letters, digits or _")
    settings: object = provider.Settings
    if not (isinstance(settings, type) and issubclass(settings, PluginSettings)):
        wrong.append("its Settings is no subclass of PluginSettings")
    if wrong:
        raise PluginLoadError(f"the provider {type(provider).__name__} is wrong: {'; '.join(wrong)}")
    return provider
