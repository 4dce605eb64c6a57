"""Profile: what the engine and its executor spend their steps on, written as a Chrome trace."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from paged_core.errors import ConfigError
from paged_core.tracing import MOST_SPANS, Trace, write_chrome_trace

if TYPE_CHECKING:
    from pathlib import Path

    from paged_core.api.executor import Executor
    from paged_core.engine.engine import Engine

log = logging.getLogger("paged_core.engine")


class Profile:
    """Times an engine from now on; `write` ends it. Raises ConfigError when the file cannot be written."""

    def __init__(self, path: Path, engine: Engine, executor: Executor) -> None:
        try:
            path.touch()
        except OSError as error:
            raise ConfigError(f"the profile cannot be written to {path}: {error.strerror}") from error
        self._path, self._executor = path, executor
        self._trace = Trace()
        self._is_written = False
        engine.watch(self._trace)

    def write(self) -> None:
        """Write what was timed. Idempotent."""
        if self._is_written:
            return
        self._is_written = True
        places = {"engine": self._trace.take(), "executor": self._executor.spans()}
        write_chrome_trace(self._path, places)
        if max(map(len, places.values())) == MOST_SPANS:
            log.warning("the profile holds the last %d spans of more", MOST_SPANS)
