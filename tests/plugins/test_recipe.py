"""A registry's recipe makes the same registry in another process."""

from __future__ import annotations

import pickle

from paged_core.plugins import bootstrap, load_plugins
from paged_core.settings import Settings


def test_a_recipe_that_travelled_makes_the_same_registry(site, provider, monkeypatch):
    """Environment and files of the other process say nothing: the recipe holds it all."""
    module = site.module("site_extra", provider("sched_extra"))
    table = {"sched_fcfs": {"watermark": 0.25}}
    made = load_plugins(disabled=["sched_prefix"], modules=[str(module)], tables=table)
    recipe = pickle.loads(pickle.dumps(made.recipe()))
    monkeypatch.setenv("PAGED_DISABLE_PLUGINS", "sched_fcfs")
    again = bootstrap(Settings.model_construct(**recipe.settings))
    assert set(again.records) == set(made.records)
    assert "sched_extra" in again.records
    assert "sched_prefix" not in again.records
    assert again.settings_of(again.records["sched_fcfs"]).watermark == 0.25
    assert recipe.versions == {name: record.version for name, record in again.records.items()}
