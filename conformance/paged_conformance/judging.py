"""Judging: what a test item is to the candidates of its run. Everything here reads pytest's items and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paged_conformance.candidate import Candidate
    from paged_conformance.selection import Selection

KINDS = ("loader", "attn", "alloc", "sched", "preempt", "sampler", "executor")
SUITE = "paged_conformance.suite."

PROPERTY = "paged_conformance"
"""The name under which a test's facts travel with its reports: id, layer, refusal, judges [[kind, name], ...]."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected before any narrowing: ids of judging tests, and the suite files that were read.

    `every_file`: all files of the suite. `by_id`: the command line named single tests, so that files were not wholly
    collected.
    """

    ids: frozenset[str]
    files: frozenset[str]
    every_file: frozenset[str]
    by_id: bool

    @staticmethod
    def of(config: pytest.Config, items: Iterable[pytest.Item]) -> Collected:
        """Of all items of this run, those included that judge nobody who was chosen."""
        suite = [item for item in items if is_of_suite(item)]
        ids = frozenset(test_id(item) for item in suite if is_judged(item) and candidates_of(item))
        by_id = any("::" in str(argument) for argument in config.args)
        files = frozenset(test_id(item).split("::")[0] for item in suite)
        every_file = frozenset(path.name for path in (Path(__file__).parent / "suite").glob("test_*.py"))
        return Collected(ids, files, every_file, by_id)

    def as_json(self) -> dict[str, Any]:
        """For the way from a worker to the controller."""
        sets = {"ids": self.ids, "files": self.files, "every_file": self.every_file}
        return {name: sorted(members) for name, members in sets.items()} | {"by_id": self.by_id}

    @staticmethod
    def from_json(body: dict[str, Any]) -> Collected:
        """The reverse."""
        ids, files, every_file = (frozenset(body[name]) for name in ("ids", "files", "every_file"))
        return Collected(ids, files, every_file, body["by_id"])


_SELECTION = pytest.StashKey["Selection"]()
_GAPS = pytest.StashKey[dict[str, str]]()
COLLECTED = pytest.StashKey[Collected]()


def chosen(config: pytest.Config) -> dict[str, list[str]]:
    """The names given on the command line, by kind."""
    return {kind: config.getoption(f"paged_{kind}") for kind in KINDS}


def has_selection(config: pytest.Config) -> bool:
    """Whether anything in this run asked for candidates."""
    return _SELECTION in config.stash


def selection(config: pytest.Config) -> Selection:
    """The candidates of this run; made on first use. Raises pytest.UsageError for names that are not registered."""
    if _SELECTION not in config.stash:
        from paged_conformance.selection import Selection

        option = config.option
        config.stash[_SELECTION] = Selection(
            chosen(config), option.paged_plugin, device=option.paged_device, quick=option.paged_quick
        )
    return config.stash[_SELECTION]


def known_gaps(config: pytest.Config) -> dict[str, str]:
    """Test id -> reason; read on first use. Raises pytest.UsageError for a malformed table."""
    if _GAPS not in config.stash:
        from paged_conformance.known_gaps import read_known_gaps

        config.stash[_GAPS] = read_known_gaps(config.invocation_params.dir, config.option.paged_known_gaps)
    return config.stash[_GAPS]


def _params(item: pytest.Item) -> dict[str, Any]:
    return dict(getattr(getattr(item, "callspec", None), "params", {}))


def candidates_of(item: pytest.Item) -> list[Candidate]:
    """The candidates an item judges, by its parameters; none when it judges nobody."""
    if not has_selection(item.config):
        return []
    known, params = selection(item.config), _params(item)
    pair = params.get("candidate")
    pairs = [pair] if isinstance(pair, tuple) else []
    pairs += [(kind, params[kind]) for kind in KINDS if isinstance(params.get(kind), str)]
    return [known.candidate(kind, name) for kind, name in pairs if name in known.names(kind)]


def is_of_suite(item: pytest.Item) -> bool:
    """Whether an item is a test of the suite, wherever it was imported."""
    return getattr(getattr(item, "function", None), "__module__", "").startswith(SUITE)


def is_judged(item: pytest.Item) -> bool:
    """False for a test of a kind nobody chose, and for one that speaks of a later contract than its candidate."""
    params = _params(item)
    if any(kind in params and params[kind] is None for kind in KINDS):
        return False
    since = [mark.args[0] for mark in item.iter_markers("paged_since")]
    return all(api <= each.provider.api for api in since for each in candidates_of(item))


def undeclared_of(item: pytest.Item) -> list[tuple[Candidate, str]]:
    """The capabilities that an item requires and a candidate of it does not declare."""
    wanted = sorted({capability for mark in item.iter_markers("paged_requires") for capability in mark.args})
    if not wanted:
        return []
    return [(each, capability) for each in candidates_of(item) for capability in wanted if not each.has(capability)]


def keep_only_candidates(item: pytest.Item) -> None:
    """Spare an item whose refusal is tested all other fixtures: they may need what is not there."""
    item.fixturenames = [name for name in item.fixturenames if name in ("candidate", *KINDS)]  # type: ignore[attr-defined]


def layer_of(item: pytest.Item) -> str:
    """The layer an item stands in; the nearest mark counts, "behaviour" when there is none."""
    mark = item.get_closest_marker("paged_layer")
    return str(mark.args[0]) if mark is not None else "behaviour"


def test_id(item: pytest.Item) -> str:
    """`file.py::name[parameters]`, the same from a checkout, a wheel or a star-import."""
    file = getattr(item, "function").__module__.rpartition(".")[2] + ".py"  # noqa: B009
    return "::".join([file, *item.nodeid.split("::")[1:]])


def facts(item: pytest.Item) -> dict[str, Any]:
    """What travels with an item's reports."""
    return {
        "id": test_id(item),
        "layer": layer_of(item),
        "refusal": sorted({capability for _, capability in undeclared_of(item)}),
        "judges": [[each.kind, each.name] for each in candidates_of(item)],
    }
