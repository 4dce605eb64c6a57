"""Session: Ray in this process, from the first executor that needs it until plugins are shut down.

One executor after another may use it; Ray itself remembers whose it is, by its namespace.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref

from paged_core import ray_session

log = logging.getLogger("paged_core")
USERS: weakref.WeakSet[object] = weakref.WeakSet()
"""Groups of ranks in this process that are not closed."""


def enter(address: str) -> None:
    """Ray is ready in this process afterwards: as it was, or joined, or begun. Raises ConfigError when none answers."""
    ray_session.enter(address, 1, log.isEnabledFor(logging.INFO), _namespace())


def leave() -> None:
    """Leave Ray if `enter` made it ready in this process and no group of ranks runs: plugins are shut down with every
    engine, and this one may be another's. A program's own Ray stays."""
    if USERS or "ray" not in sys.modules:
        return
    import ray

    if ray.is_initialized() and ray.get_runtime_context().namespace == _namespace():
        ray_session.leave()


def _namespace() -> str:
    return f"exec_ray of process {os.getpid()}"
