"""Plugins: the read-only registry. Selection judges fitness and explains itself; nothing ever falls back silently."""

from __future__ import annotations

import logging
import sys
from contextlib import redirect_stdout
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from paged_core.api.provider import KINDS, Fit, KindInfo, PluginSettings, Recipe
from paged_core.errors import (
    ConfigError,
    PagedError,
    PluginContractError,
    PluginError,
    PluginLoadError,
    PluginUnfitError,
    UnknownPluginError,
)
from paged_core.plugins.discovery import one_line
from paged_core.plugins.hints import FIRST_PARTY, install_hint, nvidia_visible
from paged_core.settings import did_you_mean, variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import click
    import pluggy

    from paged_core.plugins.record import Fault, Record, Source

logger = logging.getLogger("paged_core.plugins")


class Plugins:
    """All plugins of this process: `records` by provider name, `faults`, which cannot be chosen, and `hosts`, plugins
    that offer no provider (they add commands, choose for `auto` or clean up).

    Fulfils `paged_core.api.provider.PluginRegistry`. `load_plugins` makes it; it does not change afterwards.
    """

    def __init__(
        self,
        manager: pluggy.PluginManager,
        records: Sequence[Record],
        faults: Sequence[Fault],
        hosts: Sequence[Source],
        settings: Mapping[str, Any],
    ) -> None:
        """`settings`: those of `Settings` that say what is loaded; `plugins` among them has the tables."""
        self.records: Mapping[str, Record] = MappingProxyType({record.name: record for record in records})
        self.faults = tuple(faults)
        self.hosts = tuple(hosts)
        self._manager = manager
        self._settings = settings
        self._tables: Mapping[str, Mapping[str, Any]] = settings["plugins"]
        self._is_shut_down = False

    def of_kind(self, kind: str) -> list[Record]:
        """The records of one kind, best priority first; names break ties."""
        records = [record for record in self.records.values() if record.kind == kind]
        return sorted(records, key=lambda record: (-record.provider.priority, record.name))

    def select(self, kind: str, name: str, need: Any) -> Record:
        """The provider for `need`: the one of that name (the kind's prefix may be left out), or for "auto" the best.

        Raises UnknownPluginError, PluginUnfitError with every reason, PluginLoadError or PluginApiError when the
        chosen one is broken, PluginConflictError when the name is claimed twice (for "auto": any name of the kind), and
        ConfigError when its settings table is invalid.
        """
        record = self._best(kind, need) if name == "auto" else self._named(kind, name, need)
        self.settings_of(record)
        return record

    def create(self, kind: str, name: str, need: Any) -> Any:
        """Select, and create the backend with the user's settings for it. Raises what `select` does.

        Whatever else goes wrong inside the plugin becomes a PluginLoadError with the cause chained.
        """
        record = self.select(kind, name, need)
        try:
            return record.provider.create(need, self.settings_of(record), self)
        except PagedError:
            raise
        except Exception as cause:
            raise PluginLoadError(f"{record.source}: {record.name} cannot be created: {one_line(cause)}") from cause

    def judge(self, record: Record, need: Any) -> Fit:
        """The provider's verdict on `need`. A probe that raises or answers nonsense has found a reason against it."""
        try:
            with redirect_stdout(sys.stderr):
                fit: object = record.provider.probe(need)
        except Exception as error:
            return Fit(False, (f"its probe raised {one_line(error)}",))
        return fit if isinstance(fit, Fit) else Fit(False, (f"its probe returned {fit!r}, which is no Fit",))

    def settings_of(self, record: Record) -> PluginSettings:
        """The user's table for the provider, validated by its own model. Raises ConfigError, one line a problem."""
        table: Any = self._tables.get(record.plugin, {})
        path = [record.plugin] if record.alone else [record.plugin, record.name]
        try:
            return record.provider.Settings.model_validate(table if record.alone else table.get(record.name, {}))
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(detail, path, record) for detail in error.errors())) from error

    def recipe(self) -> Recipe:
        """What another process needs to load the same."""
        return Recipe(self._settings, {name: record.version for name, record in self.records.items()})

    def check(self) -> None:
        """The strict switch: raises PluginLoadError naming every broken plugin; the first one's cause is chained."""
        broken = [fault for fault in self.faults if fault.cause is not None]
        if broken:
            raise PluginLoadError("\n".join(dict.fromkeys(fault.reason for fault in broken))) from broken[0].cause

    def extend_cli(self, group: click.Group) -> None:
        """Let plugins add commands (`paged_cli`). One that fails or takes an existing name adds nothing."""
        for impl in self._manager.hook.paged_cli.get_hookimpls():
            before = dict(group.commands)
            try:
                impl.function(*([group] if impl.argnames else []))
                taken = [name for name, command in before.items() if group.commands.get(name) is not command]
                if taken:
                    raise PluginError(f"it replaces the command {', '.join(taken)}")
            except (Exception, SystemExit) as error:
                group.commands.clear()
                group.commands.update(before)
                logger.warning("plugin %s adds no commands: %s", impl.plugin_name, one_line(error))

    def shutdown(self) -> None:
        """Call `paged_shutdown` of every plugin, once. A failure is logged with its traceback; the others go on."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for impl in self._manager.hook.paged_shutdown.get_hookimpls():
            try:
                impl.function()
            except Exception:
                logger.exception("plugin %s failed to shut down", impl.plugin_name)

    def _named(self, kind: str, name: str, need: Any) -> Record:
        for candidate in (name, KINDS[kind].prefix + name):
            record = self.records.get(candidate)
            if record is not None and record.kind == kind:
                return self._fitting(record, need)
            for fault in self.faults:
                if fault.name == candidate and fault.kind in (kind, None):
                    raise _chosen(fault)
        raise self._unknown(kind, name, need)

    def _fitting(self, record: Record, need: Any) -> Record:
        fit = self.judge(record, need)
        if fit.ok:
            return record
        hints = f" Try: {'; '.join(fit.hints)}." if fit.hints else ""
        raise PluginUnfitError(
            f"{record.name} does not fit: {_reasons(fit)}.{hints} {self._alternatives(record.kind, need)}"
        )

    def _best(self, kind: str, need: Any) -> Record:
        title = KINDS[kind].title
        faults = [fault for fault in self.faults if fault.kind == kind]
        for fault in faults:
            if fault.status == "conflict":
                raise _chosen(fault)
        verdicts = [(record, self.judge(record, need)) for record in self.of_kind(kind)]
        losers = [f"{record.name}: {_reasons(fit)}" for record, fit in verdicts if not fit.ok]
        losers += [f"{fault.name}: {fault.status}, {fault.reason}" for fault in faults]
        fits = [record for record, fit in verdicts if fit.ok]
        if not fits and not losers:
            raise UnknownPluginError(f"no {title} is installed; `paged-core plugins` lists what is")
        if not fits:
            raise PluginUnfitError(f"no {title} fits here: {'; '.join(losers)}")
        chosen, chooser = self._host_choice(kind, need, verdicts) or (fits[0], "")
        _log_choice(chosen, chooser, verdicts, faults)
        return chosen

    def _host_choice(self, kind: str, need: Any, verdicts: Sequence[tuple[Record, Fit]]) -> tuple[Record, str] | None:
        """What a `paged_choose` hook says, asked in pluggy's order until one answers."""
        arguments = {"kind": kind, "need": need, "fits": [(record.name, fit) for record, fit in verdicts]}
        for impl in reversed(self._manager.hook.paged_choose.get_hookimpls()):
            try:
                name = impl.function(*(arguments[argument] for argument in impl.argnames))
            except Exception as cause:
                raise PluginError(f"paged_choose of plugin {impl.plugin_name} failed: {one_line(cause)}") from cause
            if name is None:
                continue
            for record, fit in verdicts:
                if record.name == name and fit.ok:
                    return record, impl.plugin_name
            raise PluginContractError(
                f"paged_choose of plugin {impl.plugin_name} answered {name!r}, which is no fitting {KINDS[kind].title}"
            )
        return None

    def _unknown(self, kind: str, name: str, need: Any) -> UnknownPluginError:
        info = KINDS[kind]
        suspects = [fault.reason for fault in self.faults if fault.status == "broken" and fault.kind is None]
        broken = f" Broken plugins that may have offered it: {'; '.join(suspects)}." if suspects else ""
        return UnknownPluginError(
            f"no {info.title} named {name!r} is installed{self._hint(info, name)}{broken} "
            f"{self._alternatives(kind, need)}"
        )

    def _hint(self, info: KindInfo, name: str) -> str:
        """How to get what was asked for, or what may have been meant."""
        other = self.records.get(name)
        if other is not None:
            return f": it is a {KINDS[other.kind].title}, chosen with --{other.kind}."
        full = name if name.startswith(info.prefix) else info.prefix + name
        names = [record.name for record in self.of_kind(info.kind)]
        names += [first_party for first_party in FIRST_PARTY if first_party.startswith(info.prefix)]
        shorts = [each.removeprefix(info.prefix) for each in names]
        return install_hint(full, nvidia_visible()) or did_you_mean(name, names + shorts) or "."

    def _alternatives(self, kind: str, need: Any) -> str:
        fits = [record.name for record in self.of_kind(kind) if self.judge(record, need).ok]
        return f"{KINDS[kind].title.capitalize()}s that fit here: {', '.join(fits) or 'none'}"


def _reasons(fit: Fit) -> str:
    return "; ".join(fit.reasons) or "it gives no reason"


def _chosen(fault: Fault) -> PagedError:
    """The error for choosing something that cannot be chosen."""
    if fault.cause is None:
        return PluginUnfitError(f"{fault.name} cannot be chosen: {fault.source} {fault.reason}")
    error: PluginError = type(fault.cause)(str(fault.cause))
    error.__cause__ = fault.cause.__cause__ or fault.cause
    return error


def _explain(detail: Any, path: list[str], record: Record) -> str:
    key = ".".join(map(str, detail["loc"]))
    where = f"[plugins.{'.'.join(path)}] {key}"
    if detail["type"] == "extra_forbidden":
        known = list(record.provider.Settings.model_fields)
        return f"{where}: {record.name} has no such setting{did_you_mean(key, known)}"
    name = "__".join([variable("plugins"), *path, key]).upper()
    return f"{where}: {detail['msg'].removeprefix('Value error, ')} (got {detail['input']!r}; variable {name})"


def _log_choice(chosen: Record, chooser: str, verdicts: Sequence[tuple[Record, Fit]], faults: Sequence[Fault]) -> None:
    """One line: who won, and why each better one lost."""
    better = verdicts[: [record for record, _ in verdicts].index(chosen)]
    lost = [
        f"{record.name} (priority {record.provider.priority}): "
        + (_reasons(fit) if not fit.ok else f"passed over by plugin {chooser}")
        for record, fit in better
    ]
    lost += [f"{fault.name}: {fault.status}, {fault.reason}" for fault in faults]
    logger.info(
        "%s: auto chose %s (priority %d, %s %s)%s",
        chosen.kind,
        chosen.name,
        chosen.provider.priority,
        chosen.dist,
        chosen.version,
        f"; lost: {'; '.join(lost)}" if lost else "",
    )
