"""Why ranks in a Ray cluster cannot share a model, as far as this machine can tell."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from paged_core.api.executor import ExecutorNeed

HINTS = ('pip install "paged-core[ray]" brings Ray',)


def reasons(need: ExecutorNeed) -> list[str]:
    """Every reason against it."""
    from paged_core.model.linear import missing_linear
    from paged_core.model.parallel.shard import check_size

    found = []
    if find_spec("ray") is None:
        found.append("Ray is not installed")
    try:
        check_size(need.spec, need.world_size)
    except ConfigError as error:
        found.append(str(error))
    return found + missing_linear(need)
