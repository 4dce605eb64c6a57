"""The pytest plugin: options --paged-*, one fixture a kind, and the rules by which a test meets a candidate.

It is loaded in every pytest run of the environment, so it imports nothing of paged_core at module level and loads no
plugin until an option or a fixture asks for candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_conformance.marks import DESCRIPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_conformance.candidate import Candidate
    from paged_conformance.selection import Selection

KINDS = ("loader", "attn", "alloc", "sched", "preempt", "sampler", "executor")
SUITE = "paged_conformance.suite"

_SELECTION = pytest.StashKey["Selection"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("paged-core conformance")
    for kind in KINDS:
        group.addoption(
            f"--paged-{kind}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"judge this plugin of kind {kind}; repeatable; kinds that are not named are not run",
        )
    group.addoption("--paged-device", choices=("cpu", "cuda"), default="cpu", help="where candidates run")
    group.addoption("--paged-quick", action="store_true", help="fewer examples: about 20 seconds a kind")
    group.addoption(
        "--paged-plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="load this plugin too: a module, a .py file or a package folder; repeatable",
    )
    group.addoption("--paged-report", metavar="FILE", help="write the verdicts and every outcome as JSON")
    group.addoption("--paged-badge", metavar="FILE", help="write a badge in the format of shields.io endpoints")
    group.addoption(
        "--paged-known-gaps",
        metavar="FILE",
        help="the pyproject.toml with the table [tool.paged-conformance.known-gaps]; default: the current folder's",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks; check the names that were given, so that a typo ends the run before it starts."""
    for description in DESCRIPTIONS:
        config.addinivalue_line("markers", description)
    if config.option.paged_plugin or any(_chosen(config).values()):
        selection(config)


def selection(config: pytest.Config) -> Selection:
    """The candidates of this run; made on first use. Raises pytest.UsageError for names that are not registered."""
    if _SELECTION not in config.stash:
        from paged_conformance.selection import Selection

        option = config.option
        config.stash[_SELECTION] = Selection(
            _chosen(config), option.paged_plugin, device=option.paged_device, quick=option.paged_quick
        )
    return config.stash[_SELECTION]


def _chosen(config: pytest.Config) -> dict[str, list[str]]:
    return {kind: config.getoption(f"paged_{kind}") for kind in KINDS}


def _candidate_fixture(kind: str) -> Callable[..., Any]:
    def candidate(request: pytest.FixtureRequest) -> Candidate:
        return selection(request.config).candidate(kind, request.param)

    candidate.__doc__ = f"The candidate of kind {kind} that is judged."
    return pytest.fixture(candidate, scope="session", name=kind)


_loader = _candidate_fixture("loader")
_attn = _candidate_fixture("attn")
_alloc = _candidate_fixture("alloc")
_sched = _candidate_fixture("sched")
_preempt = _candidate_fixture("preempt")
_sampler = _candidate_fixture("sampler")
_executor = _candidate_fixture("executor")


@pytest.fixture(scope="session")
def candidate(request: pytest.FixtureRequest) -> Candidate:
    """Any candidate, whatever its kind."""
    kind, name = request.param
    return selection(request.config).candidate(kind, name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures above where a test uses them (not its own fixtures or parameters of the same name)."""
    for name in ("candidate", *KINDS):
        if name not in metafunc.fixturenames or not _is_ours(metafunc, name):
            continue
        if name == "candidate":
            pairs = [(each.kind, each.name) for each in selection(metafunc.config).all()]
            metafunc.parametrize(name, pairs, ids=[plugin for _, plugin in pairs], indirect=True, scope="session")
        else:
            # None stands for "kind not chosen": such tests are deselected, not reported as skipped.
            names: list[str | None] = [*selection(metafunc.config).names(name)] or [None]
            metafunc.parametrize(name, names, ids=[each or "none" for each in names], indirect=True, scope="session")


def _is_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    definitions = metafunc._arg2fixturedefs.get(name, ())
    return bool(definitions) and getattr(definitions[-1].func, "__module__", "") == __name__


def candidate_of(item: pytest.Item) -> Candidate | None:
    """The candidate an item judges: that of the first of KINDS among its parameters; None when it judges nobody."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    if _SELECTION not in item.config.stash:
        return None
    chosen = selection(item.config)
    pair = params.get("candidate")
    if isinstance(pair, tuple):
        return chosen.candidate(*pair)
    for kind in KINDS:
        name = params.get(kind)
        if isinstance(name, str) and name in chosen.names(kind):
            return chosen.candidate(kind, name)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop tests of kinds and contract versions that are not judged; prepare refusals and known gaps."""
    if _SELECTION not in config.stash:
        return
    kept, dropped = [], []
    for item in items:
        (dropped if _not_judged(item) else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
    for item in kept:
        if undeclared_of(item):
            item.fixturenames = [name for name in item.fixturenames if name in ("candidate", *KINDS)]  # type: ignore[attr-defined]


def _not_judged(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    if any(kind in params and params[kind] is None for kind in KINDS):
        return True
    judged = candidate_of(item)
    if judged is None:
        return False
    return any(mark.args[0] > judged.provider.api for mark in item.iter_markers("paged_since"))


def undeclared_of(item: pytest.Item) -> list[str]:
    """The capabilities that an item requires and its candidate does not declare."""
    judged = candidate_of(item)
    if judged is None:
        return []
    wanted = [capability for mark in item.iter_markers("paged_requires") for capability in mark.args]
    return sorted({capability for capability in wanted if not judged.has(capability)})


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Test the refusal in place of a test whose capability is not declared."""
    undeclared = undeclared_of(pyfuncitem)
    judged = candidate_of(pyfuncitem)
    if not undeclared or judged is None:
        return None
    for capability in undeclared:
        judged.assert_refuses(capability)
    return True
