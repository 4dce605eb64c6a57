"""Compiling kernels to native functions with numba, and keeping them on disk."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
from numba import types

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)
news = logging.getLogger("paged_core.news")
_SLOW_S = 1.0  # loading from the compile cache takes less


def source_digest(files: Iterable[Path]) -> str:
    """A hash of the sources that machine code depends on, all of this package among them.

    numba itself looks at the entry point's file only.
    """
    digest = hashlib.sha256()
    for file in (*sorted(files), *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def compile_native(function: Any) -> Any:
    """A `numba.cfunc` of void(int64*), from the disk cache when there is one. Without a usable cache: one warning."""
    signature = types.void(types.CPointer(types.int64))
    told = threading.Timer(_SLOW_S, news.info, ["compiling kernels for this processor (first run only)"])
    told.daemon = True
    told.start()
    try:
        return numba.cfunc(signature, cache=True, error_model="numpy")(function)
    except (OSError, RuntimeError) as error:
        log.warning(
            "kernels are compiled anew in this process (some seconds): numba has no writable cache folder (%s). Set "
            "attn_cpu's setting cache_dir or the variable NUMBA_CACHE_DIR to a writable folder.",
            error,
        )
        return numba.cfunc(signature, cache=False, error_model="numpy")(function)
    finally:
        told.cancel()


def use_cache_dir(folder: str) -> None:
    """Let numba keep compiled kernels in `folder`; when that cannot be written, say so and leave numba its own choice.

    The setting is process-wide in numba; there is no other way to name a folder to it.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        log.warning("cannot keep compiled kernels in %s (%s); numba chooses another folder", folder, error)
        return
    numba.config.CACHE_DIR = folder
