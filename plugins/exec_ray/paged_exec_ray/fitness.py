"""Why ranks in a Ray cluster cannot share a model, as far as this machine can tell."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.api.executor import ExecutorNeed

HINTS = ('pip install "paged-core[ray]" brings Ray',)


def reasons(need: ExecutorNeed) -> list[str]:
    """Every reason against it."""
    from paged_core.model.parallel.shard import unfit

    return ([] if find_spec("ray") else ["Ray is not installed"]) + unfit(need)
