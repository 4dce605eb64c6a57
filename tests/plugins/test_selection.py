"""Selection, creation, settings tables and host hooks."""

from __future__ import annotations

import logging

import click
import pytest

from paged_core.errors import (
    ConfigError,
    ModelNotFoundError,
    PluginContractError,
    PluginError,
    PluginLoadError,
    PluginUnfitError,
    UnknownPluginError,
)


@pytest.fixture
def three(site, provider):
    """Three schedulers: the best does not fit, two are equal."""
    site.plugin("sched_best", provider("sched_best", priority=10, reasons="['no left hand', 'no right hand']"))
    site.plugin("sched_b", provider("sched_b"))
    site.plugin("sched_a", provider("sched_a"))
    return site.load()


def test_names_with_and_without_the_kind_s_prefix(three, need):
    assert three.select("sched", "sched_a", need).name == "sched_a"
    assert three.select("sched", "a", need).name == "sched_a"


def test_auto_takes_the_best_that_fits_and_says_in_one_line_why_better_ones_lost(three, need, caplog):
    caplog.set_level(logging.INFO, logger="paged_core.plugins")
    assert three.select("sched", "auto", need).name == "sched_a"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "sched: auto chose sched_a (priority 0, dist-sched-a 1.0); "
        "lost: sched_best (priority 10): no left hand; no right hand"
    )


def test_an_explicit_choice_that_does_not_fit_gives_all_reasons_hints_and_alternatives(three, need):
    with pytest.raises(PluginUnfitError) as caught:
        three.select("sched", "best", need)
    assert str(caught.value) == (
        "sched_best does not fit: no left hand; no right hand. Try: a hint. Schedulers that fit here: sched_a, sched_b"
    )
    assert caught.value.exit_code == 2


def test_auto_without_any_fit_lists_everyone_s_reasons(site, provider, need):
    site.plugin("sched_a", provider("sched_a", reasons="['too small']"))
    site.plugin("sched_b", "raise ImportError('no libfoo')")
    site.plugin("sched_c", provider("sched_c"))
    with pytest.raises(PluginUnfitError) as caught:
        site.load(disabled=["sched_c"]).select("sched", "auto", need)
    for part in ("sched_a: too small", "sched_b: broken", "no libfoo", "sched_c: blocked"):
        assert part in str(caught.value)


def test_a_kind_without_plugins_says_so(site, need):
    with pytest.raises(UnknownPluginError, match="no sampler is installed"):
        site.load().select("sampler", "auto", need)


def test_a_probe_that_raises_or_talks_nonsense_is_unfit_for_that_reason(site, provider, need):
    site.plugin("sched_a", provider("sched_a", reasons="1/0"))
    site.plugin("sched_b", provider("sched_b").replace('return Fit.judge([], ["a hint"])', "return True"))
    site.plugin("sched_c", provider("sched_c"))
    plugins = site.load()
    assert plugins.select("sched", "auto", need).name == "sched_c"
    with pytest.raises(PluginUnfitError, match="its probe raised ZeroDivisionError: division by zero"):
        plugins.select("sched", "a", need)
    with pytest.raises(PluginUnfitError, match="its probe returned True"):
        plugins.select("sched", "b", need)


@pytest.mark.parametrize(
    ("name", "meant"), [("sched_bets", "sched_best"), ("bset", "best"), ("fcsf", "fcfs"), ("sched_zzzz", None)]
)
def test_an_unknown_name_is_met_with_a_suggestion_and_what_fits(three, need, name, meant):
    with pytest.raises(UnknownPluginError) as caught:
        three.select("sched", name, need)
    assert (f"did you mean {meant}?" in str(caught.value)) == (meant is not None)
    assert "Schedulers that fit here: sched_a, sched_b" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_of_another_kind_is_sent_to_its_option(three, need):
    with pytest.raises(UnknownPluginError, match="it is a scheduler, chosen with --sched"):
        three.select("attn", "sched_a", need)


@pytest.mark.parametrize("name", ["attn_cuda", "cuda"])
@pytest.mark.parametrize("gpu", [True, False])
def test_a_first_party_gpu_plugin_that_is_absent_is_explained(site, provider, need, monkeypatch, name, gpu):
    monkeypatch.setattr("paged_core.plugins.registry.nvidia_visible", lambda: gpu)
    site.plugin("attn_here", provider("attn_here", hook="paged_attention", kind="attn"))
    with pytest.raises(UnknownPluginError) as caught:
        site.load().select("attn", name, need)
    message = str(caught.value)
    assert "pip install paged-attn-cuda" in message
    assert ("this machine shows none (no /dev/nvidia0, no nvidia-smi)" in message) == (not gpu)
    assert "Attention backends that fit here: attn_here" in message
    assert caught.value.exit_code == 2


def test_an_unknown_name_mentions_broken_plugins_that_may_have_offered_it(site, need):
    site.plugin("toolbox", "raise ImportError('no libfoo')")
    with pytest.raises(UnknownPluginError, match=r"may have offered it: plugin toolbox .*no libfoo"):
        site.load().select("sched", "wrench", need)


def choosing(answer: str) -> str:
    return f"@hookimpl\ndef paged_choose(kind, fits): return {answer}\n"


def test_a_paged_choose_hook_overrules_auto_or_abstains(site, provider, need, caplog):
    caplog.set_level(logging.INFO, logger="paged_core.plugins")
    site.plugin("sched_a", provider("sched_a", priority=5))
    site.plugin("sched_b", provider("sched_b"))
    site.plugin("chooser", choosing("'sched_b' if kind == 'sched' and fits[0][0] == 'sched_a' else None"))
    plugins = site.load()
    assert [source.id for source in plugins.hosts] == ["chooser"]
    assert plugins.select("sched", "auto", need).name == "sched_b"
    assert "passed over by plugin chooser" in caplog.text
    assert plugins.select("sched", "a", need).name == "sched_a"
    assert site.load(disabled=["chooser"]).select("sched", "auto", need).name == "sched_a"


def test_a_paged_choose_hook_that_errs_is_named(site, provider, need):
    site.plugin("sched_a", provider("sched_a"))
    site.plugin("chooser", choosing("'sched_z'"))
    with pytest.raises(PluginContractError, match=r"chooser .*answered 'sched_z', which is no fitting scheduler"):
        site.load().select("sched", "auto", need)
    site.module("site_chooser2", choosing("1/0"))
    site.dist("dist-2", "1.0", {"chooser2": "site_chooser2"})
    with pytest.raises(PluginError, match=r"chooser2 .*ZeroDivisionError"):
        site.load(disabled=["chooser"]).select("sched", "auto", need)


SETTINGS = """
class Table(PluginSettings):
    split: int = 4
    mode: str = "fast"
"""


@pytest.fixture
def tabled(site, provider):
    site.plugin("sched_a", SETTINGS + provider("sched_a", extra="    Settings = Table"))
    site.plugin("sched_b", SETTINGS + provider("sched_b", extra="    Settings = Table", priority=-1))
    return site


def test_the_chosen_provider_s_own_model_reads_its_table(tabled, need):
    _, settings = tabled.load(tables={"sched_a": {"split": "8"}}).create("sched", "a", need)
    assert (settings.split, settings.mode) == (8, "fast")


def test_mistakes_in_a_table_are_named_one_a_line(tabled, need):
    plugins = tabled.load(tables={"sched_a": {"splt": 8, "split": "many"}})
    with pytest.raises(ConfigError) as caught:
        plugins.select("sched", "auto", need)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "[plugins.sched_a] splt: sched_a has no such setting; did you mean split?" in lines
    assert "(got 'many'; variable PAGED_PLUGINS__SCHED_A__SPLIT)" in str(caught.value)
    assert plugins.select("sched", "b", need).name == "sched_b"  # a table that is not used is not judged


def test_a_table_of_an_unknown_plugin_is_an_error(tabled):
    with pytest.raises(ConfigError, match=r"\[plugins.sched_aa\]: no plugin of this id .* did you mean sched_a"):
        tabled.load(tables={"sched_aa": {}})
    with pytest.raises(ConfigError, match="pip install paged-attn-triton"):
        tabled.load(tables={"attn_triton": {"warps": 4}})


@pytest.mark.parametrize("source", ["raise ImportError", "blocked"])
def test_a_table_of_a_blocked_or_broken_plugin_is_no_error(site, source):
    site.plugin("sched_a", source)
    disabled = ["sched_a"] if source == "blocked" else []
    assert site.load(tables={"sched_a": {"split": 8}}, disabled=disabled).faults[0].name == "sched_a"


def test_the_tables_of_a_plugin_with_several_providers_nest_by_name(site, provider, need):
    extra = "    Settings = Table"
    site.plugin(
        "pair", SETTINGS + provider("sched_a", extra=extra) + provider("sample_a", hook="paged_sampler", kind="sampler")
    )
    _, settings = site.load(tables={"pair": {"sched_a": {"split": 9}}}).create("sched", "a", need)
    assert settings.split == 9
    _, settings = site.load().create("sched", "a", need)
    assert settings.split == 4
    with pytest.raises(ConfigError, match=r"\[plugins.pair.split\]: plugin pair offers no such provider"):
        site.load(tables={"pair": {"split": 9}})


def test_a_wrapper_creates_another_backend_by_name(site, provider, need):
    wrapper = provider("sched_wrap").replace(
        "return ('sched_wrap', settings)", "return ('wrapped', plugins.create('sched', 'inner', need)[0])"
    )
    site.plugin("sched_wrap", wrapper)
    site.plugin("sched_inner", provider("sched_inner"))
    assert site.load().create("sched", "wrap", need) == ("wrapped", "sched_inner")


@pytest.mark.parametrize(
    ("body", "error", "cause"),
    [
        ("import paged_no_such_library", PluginLoadError, ImportError),
        ("raise MemoryError", PluginLoadError, MemoryError),
        ("from paged_core.api.scheduler import Scheduler; Scheduler()", PluginLoadError, TypeError),
        ("from paged_core.errors import ModelNotFoundError as E; raise E('gone')", ModelNotFoundError, type(None)),
    ],
)
def test_a_backend_that_cannot_be_created_names_its_plugin_and_cause(site, provider, need, body, error, cause):
    source = provider("sched_a").replace("return ('sched_a', settings)", body)
    site.plugin("sched_a", source, dist="maker", version="2.1")
    with pytest.raises(error) as caught:
        site.load().create("sched", "a", need)
    assert isinstance(caught.value.__cause__, cause)
    assert error is not PluginLoadError or "maker 2.1" in str(caught.value)


def test_plugins_add_commands_and_a_bad_one_adds_nothing(site, caplog):
    command = "import click\n@hookimpl\ndef paged_cli(group):\n    group.command('{name}')(lambda: None)\n{more}"
    site.plugin("good", command.format(name="extra", more=""))
    site.plugin("fails", command.format(name="half", more="    raise RuntimeError('late')"))
    site.plugin("thief", command.format(name="run", more=""))
    group = click.Group("paged-core", commands={"run": click.Command("run")})
    run = group.commands["run"]
    site.load().extend_cli(group)
    assert set(group.commands) == {"run", "extra"}
    assert group.commands["run"] is run
    assert "RuntimeError: late" in caplog.text
    assert "replaces the command run" in caplog.text


def test_shutdown_reaches_every_plugin_once_whatever_fails(site, caplog):
    stop = "calls = []\n@hookimpl\ndef paged_shutdown():\n    calls.append(1)\n    {more}"
    modules = [site.plugin(id, stop.format(more=more)) for id, more in {"a": "", "b": "1/0", "c": ""}.items()]
    plugins = site.load()
    plugins.shutdown()
    plugins.shutdown()
    assert [__import__(module).calls for module in modules] == [[1], [1], [1]]
    assert "failed to shut down" in caplog.text
