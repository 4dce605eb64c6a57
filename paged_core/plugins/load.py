"""Load: from what is installed to a registry. One broken plugin is listed, logged once, and stops nobody."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from paged_core.api.provider import KINDS, Provider
from paged_core.errors import ConfigError, PluginApiError, PluginConflictError, PluginError
from paged_core.plugins.discovery import development_source, installed, new_manager, normalized, open_plugin
from paged_core.plugins.hints import FIRST_PARTY, distribution_of, install_hint, nvidia_visible
from paged_core.plugins.record import Fault, Record, Source
from paged_core.plugins.registry import Plugins
from paged_core.settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pluggy

    from paged_core.settings import Settings

logger = logging.getLogger("paged_core.plugins")


def bootstrap(settings: Settings) -> Plugins:
    """The registry for these settings. Every process (engine, worker, command line) makes its own, once.

    Raises as `load_plugins` does.
    """
    return load_plugins(
        disabled=settings.disable_plugins,
        autoload=settings.plugin_autoload,
        modules=settings.plugin_modules,
        tables=settings.plugins,
    )


def load_plugins(
    *,
    disabled: Sequence[str] = (),
    autoload: bool = True,
    modules: Sequence[str] = (),
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    path: Sequence[str] | None = None,
) -> Plugins:
    """Load the plugins installed on `path` (None: sys.path) and the development `modules`.

    `disabled` names plugin ids or distributions; `autoload=False` keeps first-party plugins; `tables` holds the user's
    settings by plugin id. A broken plugin becomes a Fault and a warning in the log. Raises PluginLoadError for a broken
    one among `modules` (it was asked for) and ConfigError for a table of an unknown plugin.
    """
    sources, problems = installed(path)
    extra = [name for name in modules if name not in {source.value for source in sources}]
    sources += map(development_source, extra)
    problems += _unknown_names(disabled, sources)
    shelf = _Shelf()
    for source in sources:
        remaining = _without_disabled(source, disabled)
        if remaining is None:
            shelf.fault(source, "is in disable_plugins (PAGED_DISABLE_PLUGINS)")
        elif not autoload and not _is_first_party(source) and source.value not in modules:
            shelf.fault(source, "is third-party and plugin_autoload is off")
        else:
            shelf.load(remaining, asked_for=source.value in modules)
    shelf.part_conflicts()
    for problem in (*problems, *shelf.problems):
        logger.warning("%s", problem)
    _check_tables(tables or {}, sources, shelf)
    settings = {
        "disable_plugins": tuple(disabled),
        "plugin_autoload": autoload,
        "plugin_modules": tuple(modules),
        "plugins": tables or {},
    }
    return Plugins(shelf.manager, shelf.records, shelf.faults, shelf.hosts, settings)


class _Shelf:
    """What has been loaded so far."""

    def __init__(self) -> None:
        self.manager: pluggy.PluginManager = new_manager()
        self.records: list[Record] = []
        self.faults: list[Fault] = []
        self.hosts: list[Source] = []
        self.problems: list[str] = []
        self.offers: dict[str, list[str]] = {}  # provider names by plugin id

    def fault(self, source: Source, reason: str) -> None:
        """`source` is not loaded because the user says so."""
        self.faults.append(Fault(source, "blocked", reason, source.id, _kind_of(source.id)))

    def load(self, source: Source, asked_for: bool) -> None:
        """Import `source`; keep its providers or its fault. Raises PluginLoadError when it was asked for."""
        try:
            plugin, providers = open_plugin(source)
        except PluginError as cause:
            if asked_for:
                raise
            self._break(source, source.id, _kind_of(source.id), cause)
            return
        if not self.manager.is_registered(plugin):  # one module under two ids: its providers will be in conflict
            self.manager.register(plugin, name=f"{source.id} = {source.value}")
        self.offers[source.id] = [provider.name for provider in providers]
        if not providers:
            self.hosts.append(source)
        for provider in providers:
            mismatch = _api_mismatch(source, provider)
            if mismatch is None:
                self.records.append(Record(source, provider, alone=len(providers) == 1))
            else:
                self._break(source, provider.name, provider.kind, mismatch)

    def _break(self, source: Source, name: str, kind: str | None, cause: PluginError) -> None:
        self.faults.append(Fault(source, "broken", str(cause), name, kind, cause))
        self.problems.append(f"{cause} (it is listed as broken and otherwise ignored)")

    def part_conflicts(self) -> None:
        """Providers of one name are all set aside; none of them wins."""
        by_name: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            by_name[record.name].append(record)
        for name, rivals in by_name.items():
            if len(rivals) == 1:
                continue
            claims = " and ".join(str(record.source) for record in rivals)
            cause = PluginConflictError(
                f"{name} is claimed by {claims}; disable one, for example "
                f"PAGED_DISABLE_PLUGINS={_handle([record.source for record in rivals])}, or uninstall it"
            )
            self.problems.append(str(cause))
            self.faults += [Fault(r.source, "conflict", str(cause), name, r.kind, cause) for r in rivals]
            self.records = [record for record in self.records if record.name != name]


def _handle(rivals: Sequence[Source]) -> str:
    """What to disable so that the last rival goes and the others stay: its id or, where ids are equal, its owners."""
    *others, last = rivals
    if last.id not in {other.id for other in others} or not last.owners:
        return last.id
    return ",".join(owner.dist for owner in last.owners)


def _kind_of(plugin: str) -> str | None:
    """The kind a plugin id speaks of, by its prefix."""
    return next((info.kind for info in KINDS.values() if plugin.startswith(info.prefix)), None)


def _api_mismatch(source: Source, provider: Provider[Any, Any]) -> PluginApiError | None:
    info = KINDS[provider.kind]
    if info.min_api <= provider.api <= info.api:
        return None
    speaks = str(info.api) if info.min_api == info.api else f"{info.min_api} to {info.api}"
    newer = provider.api > info.api
    cure = "paged-core" if newer or not source.owners else source.owners[0].dist
    return PluginApiError(
        f"{source}: {provider.name} speaks {info.title} API {provider.api}; this core speaks {speaks}: "
        f"pip install --upgrade {cure}"
    )


def _without_disabled(source: Source, disabled: Sequence[str]) -> Source | None:
    """`source` without the owners that are disabled, or None when it is disabled itself or no owner is left."""
    names = {normalized(name) for name in disabled}
    if normalized(source.id) in names:
        return None
    owners = tuple(owner for owner in source.owners if normalized(owner.dist) not in names)
    return None if source.owners and not owners else Source(source.id, source.value, owners)


def _unknown_names(disabled: Sequence[str], sources: Sequence[Source]) -> list[str]:
    known = [source.id for source in sources] + [owner.dist for source in sources for owner in source.owners]
    return [
        f"disable_plugins names {name!r}, which is not installed{did_you_mean(name, known)} "
        f"(installed: {', '.join(sorted({source.id for source in sources})) or 'none'})"
        for name in disabled
        if normalized(name) not in {normalized(each) for each in known}
    ]


def _is_first_party(source: Source) -> bool:
    own = {"paged-core", distribution_of(source.id)} if source.id in FIRST_PARTY else {"paged-core"}
    return any(normalized(owner.dist) in own for owner in source.owners)


def _check_tables(tables: Mapping[str, Mapping[str, Any]], sources: Sequence[Source], shelf: _Shelf) -> None:
    """Every table belongs to a plugin; of a plugin with several providers, every inner table to one of those."""
    ids = [source.id for source in sources]
    problems = [
        f"[plugins.{id}]: no plugin of this id is installed{did_you_mean(id, ids)}{install_hint(id, nvidia_visible())}"
        for id in tables
        if id not in ids
    ]
    for id, table in tables.items():
        names = shelf.offers.get(id, [])
        problems += [
            f"[plugins.{id}.{name}]: plugin {id} offers no such provider{did_you_mean(name, names)} "
            f"(it offers {', '.join(names)})"
            for name in table
            if len(names) > 1 and name not in names
        ]
    if problems:
        raise ConfigError("\n".join(problems))
