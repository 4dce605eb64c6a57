"""Loading: provenance, broken plugins, rollback, conflicts, versions, blocking, development modules."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paged_core.errors import PluginApiError, PluginConflictError, PluginLoadError, PluginUnfitError
from paged_core.plugins import Owner, load_plugins

BROKEN = {
    "ImportError": "raise ImportError('no libfoo')",
    "SyntaxError": "def (",
    "SystemExit": "raise SystemExit(3)",
    "OSError": "raise OSError('libcuda.so.1: cannot open shared object file')",
    "RuntimeError": "raise RuntimeError('driver too old')",
}


def faults(plugins) -> dict[str, str]:
    return {fault.name: fault.status for fault in plugins.faults}


def test_provenance_of_a_fake_installation(fakes, monkeypatch):
    monkeypatch.syspath_prepend(fakes)
    record = load_plugins(path=[str(fakes)]).records["sched_fake"]
    assert (record.plugin, record.dist, record.version, record.kind, record.status) == (
        "sched_fake",
        "paged-sched-fake",
        "1.2",
        "sched",
        "ok",
    )


def test_every_load_makes_a_registry_of_its_own(site, provider):
    site.plugin("sched_a", provider("sched_a"))
    one, two = site.load(), site.load(disabled=["sched_a"])
    assert list(one.records) == ["sched_a"]
    assert list(two.records) == []
    with pytest.raises(TypeError):
        one.records["sched_b"] = one.records["sched_a"]  # the registry is read-only


@pytest.mark.parametrize("error", BROKEN)
def test_g01_a_plugin_that_fails_on_import_harms_nobody(site, provider, need, caplog, error):
    site.plugin("sched_bad", BROKEN[error], dist="bad-dist", version="0.7")
    site.plugin("sched_good", provider("sched_good"))
    plugins = site.load()
    assert faults(plugins) == {"sched_bad": "broken"}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "sched_bad" in warnings[0]
    assert "bad-dist 0.7" in warnings[0]
    assert error in warnings[0]
    assert plugins.select("sched", "auto", need).name == "sched_good"
    with pytest.raises(PluginLoadError, match=error) as caught:
        plugins.select("sched", "bad", need)
    assert type(caught.value.__cause__).__name__ == error
    assert caught.value.exit_code == 2
    with pytest.raises(PluginLoadError, match=error):
        plugins.check()


@pytest.mark.parametrize(
    ("value", "source", "why"),
    [
        ("site_x:nothing", "", "AttributeError"),
        ("site_x:number", "number = 3", "holds no function decorated"),
        ("site_x", "@hookimpl\ndef paged_scheduler(): raise RuntimeError('on call')", "RuntimeError: on call"),
        ("site_x", "@hookimpl\ndef paged_scheduler(): return 3", "returned 3"),
        ("site_x", "@hookimpl\ndef paged_scheduler(): return None", "returned None"),
        ("site_x", "@hookimpl\ndef paged_scheduler(): return Provider", "return an instance"),
        ("site_x", "@hookimpl\ndef paged_scheduler(request): return []", "request"),
        ("site_x", "@hookimpl\ndef paged_sheduler(): return []", "did you mean paged_scheduler"),
        ("site_x", "def paged_scheduler(): return []", "paged_scheduler lacks the decorator"),
        ("site_x", "@hookimpl(wrapper=True)\ndef paged_scheduler(): return (yield)", "wraps a hook"),
        ("not a module", "", "cannot be loaded"),
    ],
)
def test_g07_whatever_is_wrong_with_a_plugin_is_reported_as_broken(site, value, source, why):
    site.module("site_x", source)
    site.dist("dist-x", "1.0", {"sched_x": value})
    plugins = site.load()
    assert faults(plugins) == {"sched_x": "broken"}
    assert why in plugins.faults[0].reason


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"kind": "attn"}, "its kind is 'attn'"),
        ({"api": "1"}, "its api is '1', not a int"),
        ({"summary": None}, "its summary is None"),
        ({"capabilities": {"fcfs"}}, "its capabilities is"),
        ({"Settings": dict}, "its Settings is no subclass"),
    ],
)
def test_a_provider_with_wrong_fields_is_broken(site, provider, attributes, why):
    source = provider("sched_x", **attributes).replace("<class 'dict'>", "dict")
    site.plugin("sched_x", source)
    plugins = site.load()
    assert faults(plugins) == {"sched_x": "broken"}
    assert why in plugins.faults[0].reason


@pytest.mark.parametrize("name", ["fifo", "sched_", "sched_Fifo", "sched-fifo"])
def test_a_provider_s_name_carries_the_prefix_of_its_kind(site, provider, name):
    site.plugin("sched_x", provider("sched_x").replace("name = 'sched_x'", f"name = {name!r}"))
    assert faults(site.load()) == {"sched_x": "broken"}


def test_g05_a_plugin_that_fails_half_way_leaves_nothing_behind(site, provider, need):
    half = provider("sample_p", hook="paged_sampler", kind="sampler") + (
        "@hookimpl\ndef paged_choose(kind, need, fits): raise AssertionError('called')\n"
        "@hookimpl\ndef paged_executor(): raise RuntimeError('half-way')\n"
    )
    site.plugin("a_half", half)
    site.plugin("other", provider("sample_p", hook="paged_sampler", kind="sampler"))
    plugins = site.load()
    assert faults(plugins) == {"a_half": "broken"}
    assert plugins.records["sample_p"].plugin == "other"
    assert plugins.select("sampler", "auto", need).name == "sample_p"  # the dead plugin's paged_choose stays silent


def test_printing_while_loading_and_probing_keeps_standard_output_clean(site, provider, need, capsys):
    site.plugin("sched_x", "print('noise')\n" + provider("sched_x", reasons="print('more noise') or []"))
    plugins = site.load()
    assert plugins.select("sched", "x", need).name == "sched_x"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "noise" in captured.err


def test_a_wrong_api_version_names_both_numbers_and_the_cure(site, provider, need):
    site.plugin("sched_new", provider("sched_new", api=2), dist="newer", version="0.3")
    site.plugin("sched_old", provider("sched_old", api=0), dist="older")
    plugins = site.load()
    assert faults(plugins) == {"sched_new": "broken", "sched_old": "broken"}
    with pytest.raises(PluginApiError) as caught:
        plugins.select("sched", "new", need)
    assert "distribution newer 0.3" in str(caught.value)
    assert "speaks scheduler API 2; this core speaks 1: pip install --upgrade paged-core" in str(caught.value)
    with pytest.raises(PluginApiError, match="pip install --upgrade older"):
        plugins.select("sched", "sched_old", need)


def test_a_wrong_api_version_hides_no_other_provider_of_the_plugin(site, provider):
    source = provider("sched_new", api=2) + provider("sample_ok", hook="paged_sampler", kind="sampler")
    site.plugin("both", source)
    plugins = site.load()
    assert list(plugins.records) == ["sample_ok"]
    assert faults(plugins) == {"sched_new": "broken"}


@pytest.mark.parametrize("ids", [("one", "two"), ("sched_x", "sched_x")])
def test_a_name_claimed_twice_belongs_to_nobody_until_one_is_disabled(site, provider, need, ids):
    for number, id in enumerate(ids):
        site.module(f"site_{number}", provider("sched_x"))
        site.dist(f"dist-{number}", "1.0", {id: f"site_{number}"})
    site.plugin("sched_y", provider("sched_y"))
    plugins = site.load()
    assert [fault.status for fault in plugins.faults] == ["conflict", "conflict"]
    assert plugins.select("sched", "y", need).name == "sched_y"
    for name in ("x", "auto"):
        with pytest.raises(PluginConflictError) as caught:
            plugins.select("sched", name, need)
        assert "dist-0" in str(caught.value)
        assert "dist-1" in str(caught.value)
    cure = re.search(r"PAGED_DISABLE_PLUGINS=([\w,-]+)", str(caught.value))
    assert cure is not None
    cured = site.load(disabled=cure[1].split(","))
    assert cured.select("sched", "x", need).dist == "dist-0"


def test_one_module_under_two_ids_is_a_conflict_of_its_providers(site, provider):
    site.module("site_x", provider("sched_x"))
    site.dist("dist-x", "1.0", {"sched_x": "site_x", "alias": "site_x"})
    assert [fault.status for fault in site.load().faults] == ["conflict", "conflict"]
    assert list(site.load(disabled=["alias"]).records) == ["sched_x"]


def test_the_same_entry_point_of_two_distributions_is_one_plugin_with_both_owners(site, provider):
    site.module("site_x", provider("sched_x"))
    site.dist("bundle", "1.0", {"sched_x": "site_x"})
    site.dist("alone", "1.1", {"sched_x": "site_x"})
    plugins = site.load()
    assert plugins.faults == ()
    assert set(plugins.records["sched_x"].source.owners) == {Owner("alone", "1.1"), Owner("bundle", "1.0")}
    assert site.load(disabled=["alone"]).records["sched_x"].dist == "bundle"
    assert site.load(disabled=["alone", "bundle"]).faults[0].status == "blocked"


def test_g03_a_stale_second_copy_of_a_distribution_is_reported(site, provider, caplog):
    site.module("site_x", provider("sched_x"))
    site.dist("twice", "1.0", {"sched_x": "site_x"})
    site.dist("twice", "2.0", {"sched_z": "site_z"}, folder="later")
    plugins = load_plugins(path=[str(site.folder), str(site.folder / "later")])
    assert list(plugins.records) == ["sched_x"]
    assert "twice is installed twice: version 1.0 is used, version 2.0" in caplog.text
    assert "sched_z" in caplog.text


@pytest.mark.parametrize("lost", ["file", "fields"])
def test_g07_an_orphaned_installation_without_metadata_harms_nobody(site, provider, lost):
    site.plugin("sched_x", provider("sched_x"))
    site.plugin("sched_y", provider("sched_y"))
    metadata = site.folder / "dist_sched_x-1.0.dist-info/METADATA"
    metadata.unlink() if lost == "file" else metadata.write_text("Metadata-Version: 2.1\n")
    records = site.load().records
    assert (records["sched_x"].dist, records["sched_x"].version) == ("(no metadata)", "?")
    assert records["sched_y"].dist == "dist-sched-y"


def test_g03_a_misspelt_name_in_the_block_list_is_reported(site, provider, caplog):
    site.plugin("sched_x", provider("sched_x"))
    assert list(site.load(disabled=["sched_xx"]).records) == ["sched_x"]
    assert "'sched_xx', which is not installed; did you mean sched_x? (installed: sched_x)" in caplog.text


@pytest.mark.parametrize("name", ["sched_x", "Dist_Sched.X"])
def test_a_blocked_plugin_is_not_even_imported(site, need, name):
    module = site.plugin("sched_x", "raise AssertionError")
    plugins = site.load(disabled=[name])
    assert faults(plugins) == {"sched_x": "blocked"}
    assert module not in sys.modules
    with pytest.raises(PluginUnfitError, match="PAGED_DISABLE_PLUGINS"):
        plugins.select("sched", "x", need)


def test_autoload_off_keeps_first_party_and_what_was_asked_for(site, provider):
    site.plugin("sched_fcfs", provider("sched_fcfs"), dist="paged-sched-fcfs")
    site.plugin("sched_prefix", provider("sched_prefix"), dist="imitation")
    asked = site.plugin("sched_mine", provider("sched_mine"))
    plugins = site.load(autoload=False, modules=[asked])
    assert set(plugins.records) == {"sched_fcfs", "sched_mine"}
    assert faults(plugins) == {"sched_prefix": "blocked"}


def test_a_development_module_is_loaded_by_file_folder_or_name(site, provider, tmp_path):
    work = tmp_path / "work"
    (work / "paged_sched_folder").mkdir(parents=True)
    file = site.module("paged_sched_file", provider("sched_file")).rename(work / "paged_sched_file.py")
    init = site.module("init", provider("sched_folder")).rename(work / "paged_sched_folder/__init__.py")
    site.module("paged_sched_named", provider("sched_named"))
    plugins = site.load(modules=[str(file), str(init.parent), "paged_sched_named"])
    assert {record.plugin for record in plugins.records.values()} == {"sched_file", "sched_folder", "sched_named"}
    assert plugins.records["sched_file"].dist == "(development)"
    assert str(file) in str(plugins.records["sched_file"].source)


def test_a_broken_development_module_stops_at_once_since_it_was_asked_for(site, tmp_path):
    with pytest.raises(PluginLoadError, match="there is no"):
        site.load(modules=[str(tmp_path / "absent.py")])
    with pytest.raises(PluginLoadError, match="ModuleNotFoundError"):
        site.load(modules=["paged_sched_absent"])
    (tmp_path / "json.py").write_text("")
    with pytest.raises(PluginLoadError, match="another module of the name json"):
        site.load(modules=[str(tmp_path / "json.py")])


def test_listing_and_importing_plugins_pulls_in_no_compute_library():
    """Over the installed first-party plugins, probes included, in a process of its own."""
    code = (
        "import sys, paged_core.cli.plugins as p\n"
        "p.plugins_command(['--json'], standalone_mode=False)\n"
        "heavy = {'torch', 'triton', 'numba', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["plugins"]
    assert rows
    assert [row["reasons"] for row in rows if row["status"] in {"broken", "conflict"}] == []


@pytest.mark.slow
def test_the_sample_plugin_installs_with_pip_and_enters_by_its_entry_point(sample, tmp_path, need):
    target = tmp_path / "target"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(sample)], check=True, cwd=tmp_path)
    code = (
        "from paged_core.plugins import load_plugins\n"
        f"record = load_plugins(path=[{str(target)!r}]).records['sched_one']\n"
        "print(record.dist, record.version, record.plugin)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{target}:{Path(__file__).parents[2]}"},
    )
    assert done.stdout.split() == ["paged-sched-one", "0.3.0", "sched_one"]
