"""Selection: which plugins of which kinds this run judges, and the candidates it hands to fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paged_conformance.candidate import Candidate
from paged_core.api.provider import KINDS
from paged_core.errors import PagedError
from paged_core.plugins import bootstrap
from paged_core.settings import Settings, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Selection:
    """The candidates by kind and name. Without any name, every registered plugin of every kind is judged.

    Raises pytest.UsageError for a name that is not registered, and for settings or a development plugin that cannot
    be loaded. The prefix of the kind may be left out of a name.
    """

    def __init__(
        self, chosen: Mapping[str, Sequence[str]], modules: Sequence[str], *, device: str, quick: bool
    ) -> None:
        try:
            self.plugins = bootstrap(Settings.load(plugin_modules=tuple(modules)))
        except PagedError as error:
            raise pytest.UsageError(str(error)) from error
        self.device = device
        self.quick = quick
        self.everything = not any(chosen.values())
        self._reasons: dict[tuple[str, str], tuple[str, ...]] = {}
        problems: list[str] = []
        self._candidates: dict[str, dict[str, Candidate]] = {}
        for kind in KINDS:
            names = [record.name for record in self.plugins.of_kind(kind)] if self.everything else chosen.get(kind, ())
            self._candidates[kind] = self._resolve(kind, names, problems)
        if problems:
            raise pytest.UsageError("\n".join(problems))

    def names(self, kind: str, *, combined: bool = False) -> list[str]:
        """Names of the candidates of `kind`, in the order in which they were named.

        `combined`: of those that are tried with candidates of other kinds, whom one that nobody expects to run here
        would keep from being judged.
        """
        candidates = self._candidates[kind]
        return [name for name, each in candidates.items() if not combined or self.expects(each)]

    def candidate(self, kind: str, name: str) -> Candidate:
        """One of `names(kind)`."""
        return self._candidates[kind][name]

    def all(self) -> list[Candidate]:
        """Every candidate, kind by kind."""
        return [candidate for by_name in self._candidates.values() for candidate in by_name.values()]

    def reasons_not_run(self, candidate: Candidate) -> tuple[str, ...]:
        """`candidate.reasons_not_run()`, asked once."""
        key = (candidate.kind, candidate.name)
        if key not in self._reasons:
            self._reasons[key] = candidate.reasons_not_run()
        return self._reasons[key]

    def expects(self, candidate: Candidate) -> bool:
        """Whether this run is to judge it: it was named, or is made for this device, or runs here all the same.

        One that nobody named and that is made for another device only is listed as "not run" and leaves the exit code
        as it is.
        """
        named = not self.everything
        return named or self.device in candidate.provider.devices or not self.reasons_not_run(candidate)

    def _resolve(self, kind: str, names: Sequence[str], problems: list[str]) -> dict[str, Candidate]:
        found = {}
        for name in names:
            for full in (name, KINDS[kind].prefix + name):
                record = self.plugins.records.get(full)
                if record is not None and record.kind == kind:
                    found[full] = Candidate(record, self.plugins, self.device, self.quick)
                    break
            else:
                problems.append(self._unknown(kind, name))
        return found

    def _unknown(self, kind: str, name: str) -> str:
        info = KINDS[kind]
        for fault in self.plugins.faults:
            if fault.name in (name, info.prefix + name):
                return f"--paged-{kind} {name}: {fault.reason}"
        known = [record.name for record in self.plugins.of_kind(kind)]
        shorts = [each.removeprefix(info.prefix) for each in known]
        return (
            f"--paged-{kind} {name}: no such {info.title}{did_you_mean(name, known + shorts)} "
            f"Registered: {', '.join(known) or 'none'}"
        )
