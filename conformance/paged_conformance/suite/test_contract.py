"""The contract of every kind: a light, cold, truthful provider."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from paged_conformance.marks import layer
from paged_core.api.allocator import Allocator
from paged_core.api.attention import Attention
from paged_core.api.executor import Executor
from paged_core.api.loader import Loader
from paged_core.api.preemption import Preemption
from paged_core.api.provider import KINDS, Fit, PluginSettings
from paged_core.api.sampler import Sampler
from paged_core.api.scheduler import Scheduler
from paged_core.errors import PluginUnfitError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paged_conformance.candidate import Candidate

pytestmark = layer("contract")

BACKENDS: dict[str, type] = {
    "loader": Loader,
    "attn": Attention,
    "alloc": Allocator,
    "sched": Scheduler,
    "preempt": Preemption,
    "sampler": Sampler,
    "executor": Executor,
}
HEAVY = ("torch", "triton", "numba", "llvmlite", "transformers", "jax", "tensorflow", "cupy")
NO_CAPABILITY = "no_such_capability"

# Opens the plugin as the registry does, in a fresh interpreter, and prints what that dragged in.
OPEN_PLUGIN = """
import json, sys
path, value, heavy = json.loads(sys.argv[1])
sys.path[:] = path
from paged_core.plugins.discovery import development_source, open_plugin
before = set(sys.modules)
open_plugin(development_source(value))
print(json.dumps([name for name in heavy if name in set(sys.modules) - before]))
"""


def test_name_begins_with_the_prefix_of_its_kind(candidate: Candidate) -> None:
    info = KINDS[candidate.kind]
    assert candidate.provider.kind == info.kind
    assert re.fullmatch(info.prefix + "[a-z0-9_]+", candidate.name), (
        f"contract: the name of a {info.title} is {info.prefix!r} and lower-case letters, digits or _, "
        f"not {candidate.name!r}"
    )


def test_api_version_is_one_that_this_core_speaks(candidate: Candidate) -> None:
    info = KINDS[candidate.kind]
    assert info.min_api <= candidate.provider.api <= info.api, (
        f"contract: {candidate.name} speaks API {candidate.provider.api}, this core {info.min_api} to {info.api}"
    )


def test_summary_is_one_line(candidate: Candidate) -> None:
    summary = candidate.provider.summary
    assert len(summary.strip().splitlines()) == 1, (
        f"contract: the summary is one line for `paged-core plugins`, not {summary!r}"
    )


def test_priority_is_an_integer(candidate: Candidate) -> None:
    assert type(candidate.provider.priority) is int, f"contract: priority is {candidate.provider.priority!r}"


def test_capabilities_are_a_frozen_set_of_lower_case_words(candidate: Candidate) -> None:
    declared = candidate.provider.capabilities
    assert isinstance(declared, frozenset)
    wrong = [name for name in declared if not (isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name))]
    assert not wrong, f"contract: capabilities are lower-case words, not {wrong}"


def test_devices_are_a_frozen_set_of_those_that_needs_name(candidate: Candidate) -> None:
    declared = candidate.provider.devices
    assert isinstance(declared, frozenset)
    assert declared, "contract: a plugin is made for some device"
    assert declared <= {"cpu", "cuda"}, f"contract: devices are cpu and cuda, not {sorted(declared)}"


def test_settings_have_a_default_for_everything(candidate: Candidate) -> None:
    try:
        candidate.provider.Settings()
    except ValidationError as error:
        pytest.fail(f"contract: without a table of settings {candidate.name} cannot be chosen: {error}")


def test_settings_schema_is_json_and_describes_every_field(candidate: Candidate) -> None:
    schema = candidate.provider.Settings.model_json_schema()
    assert json.loads(json.dumps(schema)) == schema
    silent = [name for name, field in candidate.provider.Settings.model_fields.items() if not field.description]
    assert not silent, f"contract: settings without a description: {silent}"


def test_settings_are_frozen_and_refuse_unknown_keys(candidate: Candidate) -> None:
    model = candidate.provider.Settings
    assert issubclass(model, PluginSettings)
    with pytest.raises(ValidationError):
        model.model_validate({"no_such_setting": 1})
    instance = model()
    for name in model.model_fields:
        with pytest.raises(ValidationError):
            setattr(instance, name, getattr(instance, name))


def strange_needs(candidate: Candidate) -> Iterator[Any]:
    """The small need, and the same with one field out of any sensible range at a time."""
    need = candidate.small_need()
    yield need
    for field in fields(need):
        value = getattr(need, field.name)
        if isinstance(value, int) and not isinstance(value, bool):
            yield from (replace(need, **{field.name: strange}) for strange in (-1, 0, 2**40))
        elif isinstance(value, str):
            yield from (replace(need, **{field.name: strange}) for strange in ("", "no such thing", "\0"))
    yield replace(need, required=frozenset({NO_CAPABILITY}))


def test_probe_answers_every_need_with_a_fit_and_never_raises(candidate: Candidate) -> None:
    for need in strange_needs(candidate):
        try:
            fit: object = candidate.provider.probe(need)
        except Exception as error:
            raise AssertionError(f"contract: probe may not raise; it raised {error!r} for {need}") from error
        assert isinstance(fit, Fit), f"contract: probe answered {fit!r}, which is no Fit, for {need}"


def test_probe_gives_a_reason_for_every_refusal(candidate: Candidate) -> None:
    for need in strange_needs(candidate):
        fit = candidate.provider.probe(need)
        if not fit.ok:
            assert fit.reasons, f"contract: refused without a reason: {need}"
            assert all(isinstance(reason, str) and reason.strip() for reason in fit.reasons), fit


def test_probe_refuses_an_unknown_capability_by_name(candidate: Candidate) -> None:
    candidate.assert_refuses(NO_CAPABILITY)
    with pytest.raises(PluginUnfitError, match=NO_CAPABILITY):
        candidate.create(candidate.small_need(NO_CAPABILITY))


def test_probe_names_every_missing_capability(candidate: Candidate) -> None:
    wanted = (NO_CAPABILITY, "another_such_capability")
    reasons = " ".join(candidate.fit(candidate.small_need(*wanted)).reasons)
    missing = [name for name in wanted if name not in reasons]
    assert not missing, f"contract: all reasons are collected; {missing} is not in {reasons!r}"


def test_probe_has_no_side_effects(
    candidate: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    need = candidate.small_need()
    if hasattr(need, "cache_dir"):
        need = replace(need, cache_dir=str(tmp_path))
    state, threads = repr(vars(candidate.provider)), threading.active_count()
    capfd.readouterr()
    first, second = candidate.provider.probe(need), candidate.provider.probe(need)
    assert first == second, f"contract: the same need got two verdicts: {first}, then {second}"
    assert repr(vars(candidate.provider)) == state, "contract: a provider is cold; probe changed its attributes"
    assert list(tmp_path.iterdir()) == [], "contract: probe wrote files"
    assert threading.active_count() <= threads, "contract: probe started threads"
    assert capfd.readouterr().out == "", "contract: probe wrote to standard output, which belongs to answers"


def test_opening_the_plugin_imports_nothing_heavy(candidate: Candidate) -> None:
    arguments = json.dumps([sys.path, candidate.record.source.value, HEAVY])
    done = subprocess.run(
        [sys.executable, "-c", OPEN_PLUGIN, arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    heavy = json.loads(done.stdout)
    assert not heavy, f"contract: importing a plugin and asking for its providers must not import {', '.join(heavy)}"


def test_create_gives_the_backend_of_its_kind(candidate: Candidate) -> None:
    need = candidate.small_need()
    fit = candidate.fit(need)
    if not fit.ok:
        with pytest.raises(PluginUnfitError):
            candidate.create(need)
        return
    backend = candidate.create(need)
    try:
        assert isinstance(backend, BACKENDS[candidate.kind]), (
            f"contract: create of a {KINDS[candidate.kind].title} returned {type(backend).__name__}"
        )
    finally:
        if isinstance(backend, Executor):
            backend.close()
