"""A CPU as the site, with so little to rotate that cases take milliseconds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from paged_core.bench.site import Site, site_of
from paged_core.plugins import bootstrap
from paged_core.settings import Settings

if TYPE_CHECKING:
    from paged_core.plugins import Plugins


@pytest.fixture
def site() -> Site:
    return dataclasses.replace(site_of("cpu"), rotation=1 << 14, sample_s=1e-6)


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    return bootstrap(Settings.load())
