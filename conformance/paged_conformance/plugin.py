"""The pytest plugin: options --paged-*, one fixture a kind, and the rules by which a test meets a candidate.

It is loaded in every pytest run of the environment, so it imports nothing of paged_core at module level and loads no
plugin until an option or a fixture asks for candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_conformance import judging
from paged_conformance.judging import KINDS
from paged_conformance.marks import DESCRIPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_conformance.candidate import Candidate
    from paged_conformance.report import Report


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
    group.addoption(
        "--paged-loader-sample",
        action="append",
        default=[],
        metavar="PATH",
        help="a sound small model, file or folder, in the format of the judged loader; repeatable",
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
    if config.option.paged_plugin or any(judging.chosen(config).values()):
        judging.selection(config)
        judging.known_gaps(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reporter(config), "paged_conformance_reporter")


def _candidate_fixture(kind: str) -> Callable[..., Any]:
    def candidate(request: pytest.FixtureRequest) -> Candidate:
        return judging.selection(request.config).candidate(kind, request.param)

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
    return judging.selection(request.config).candidate(kind, name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise the fixtures above where a test uses them (not its own fixtures or parameters of the same name)."""
    for name in ("candidate", *KINDS):
        if name not in metafunc.fixturenames or not _is_ours(metafunc, name):
            continue
        selection = judging.selection(metafunc.config)
        if name == "candidate":
            pairs = [(each.kind, each.name) for each in selection.all()]
            metafunc.parametrize(name, pairs, ids=[plugin for _, plugin in pairs], indirect=True, scope="session")
        else:
            # None stands for "kind not chosen": such tests are deselected, not reported as skipped.
            combined = sum(kind in metafunc.fixturenames and _is_ours(metafunc, kind) for kind in KINDS) > 1
            names: list[str | None] = [*selection.names(name, combined=combined)] or [None]
            metafunc.parametrize(name, names, ids=[each or "none" for each in names], indirect=True, scope="session")


def _is_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    definitions = metafunc._arg2fixturedefs.get(name, ())
    return bool(definitions) and getattr(definitions[-1].func, "__module__", "") == __name__


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before anything narrows the run: drop tests that judge nobody chosen; prepare refusals and known gaps."""
    if not judging.has_selection(config):
        return
    collected = judging.Collected.of(config, items)
    if hasattr(config, "workeroutput"):
        config.workeroutput[judging.PROPERTY] = collected.as_json()
    else:
        config.stash[judging.COLLECTED] = collected
    dropped = [item for item in items if not judging.is_judged(item)]
    if dropped:
        items[:] = [item for item in items if judging.is_judged(item)]
        config.hook.pytest_deselected(items=dropped)
    gaps = judging.known_gaps(config)
    for item in items:
        if judging.undeclared_of(item):
            judging.keep_only_candidates(item)
        if not judging.is_of_suite(item) or not judging.candidates_of(item):
            continue
        item.user_properties.append((judging.PROPERTY, judging.facts(item)))
        reason = gaps.get(judging.test_id(item))
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the hardware cannot run, with the reason; the verdict then reads "not run". Contracts are judged."""
    if judging.layer_of(item) == "contract" or not judging.has_selection(item.config):
        return
    for each in judging.candidates_of(item):
        reasons = judging.selection(item.config).reasons_not_run(each)
        if reasons:
            pytest.skip(f"{each.name} does not run here: {'; '.join(reasons)}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Test the refusal in place of a test whose capability is not declared."""
    undeclared = judging.undeclared_of(pyfuncitem)
    for each, capability in undeclared:
        each.assert_refuses(capability)
    return True if undeclared else None


class _Reporter:
    """Keeps the reports that arrive and turns them into the verdict at the end. Not registered in xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: list[pytest.TestReport] = []
        self._result: Report | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what judges somebody."""
        if any(name == judging.PROPERTY for name, _ in report.user_properties):
            self._reports.append(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist collected (all collect the same)."""
        body = getattr(node, "workeroutput", {}).get(judging.PROPERTY)
        if body is not None:
            self._config.stash[judging.COLLECTED] = judging.Collected.from_json(body)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge, write the files, and set the exit code unless pytest itself has found something wrong."""
        collected = self._config.stash.get(judging.COLLECTED, None)
        option = self._config.option
        if option.collectonly or collected is None or not (collected.ids or option.paged_report or option.paged_badge):
            return
        from paged_conformance.report import Report

        selection, gaps = judging.selection(self._config), judging.known_gaps(self._config)
        self._result = Report(selection, gaps, collected, option.paged_loader_sample)
        for report in self._reports:
            self._result.add(report)
        self._result.close()
        self._result.write(self._config.invocation_params.dir, option.paged_report, option.paged_badge)
        if exitstatus == pytest.ExitCode.OK:
            session.exitstatus = self._result.exit_code

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        if self._result is not None:
            terminalreporter.section(f"paged-core conformance: {self._result.verdict}")
            for line in self._result.table():
                terminalreporter.write_line(line)
