"""Plugins: found by entry point, registered by hook, chosen by name, run by object.

    settings -> bootstrap -> Plugins --select--> Record(provider) --create--> backend

The only user of pluggy besides `api/hookspecs.py`. There is no global registry: every process calls `bootstrap` once
and hands the result down; tests make their own with `load_plugins`.
"""

from __future__ import annotations

from paged_core.plugins.load import bootstrap, load_plugins
from paged_core.plugins.record import Fault, Owner, Record, Source
from paged_core.plugins.registry import Plugins

__all__ = ["Fault", "Owner", "Plugins", "Record", "Source", "bootstrap", "load_plugins"]
