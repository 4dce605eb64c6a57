"""Models by Hub id ("org/name") through huggingface_hub: the cache first, the network only when it lacks something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from paged_core.errors import ModelError, ModelNotFoundError
from paged_load_hf.folder import ModelFolder

if TYPE_CHECKING:
    from collections.abc import Callable

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
UNWANTED = ["original/*", "onnx/*", "openvino/*", "consolidated*", "runs/*", "checkpoint-*/*"]


def is_hub_id(model: str) -> bool:
    """Whether a name has the form org/name."""
    return HUB_ID.fullmatch(model) is not None and ".." not in model


def pull(model: str, revision: str | None, progress: Callable[[str], None]) -> Path:
    """The local snapshot of a Hub model: config, safetensors and tokenizer files, never pickles or code.

    Raises ModelNotFoundError, one line, when it is neither cached nor obtainable.
    """
    cached = _cached(model, revision)
    if cached is not None and _is_complete(cached):
        return cached
    progress(f"downloading {model} from the Hugging Face Hub")
    try:
        found = _snapshot(model, revision, local=False)
    except Exception as error:  # the library's errors come from its HTTP client, the file system and itself
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelNotFoundError(
            f"{model!r} is no folder here and could not be fetched from the Hub: {cause[:300]} "
            "Check the name and the network, or give a local folder."
        ) from error
    progress(f"{model} is at {found}")
    return found


def _cached(model: str, revision: str | None) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _snapshot(model, revision, local=True)
    except LocalEntryNotFoundError:
        return None


def _snapshot(model: str, revision: str | None, local: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED, local_files_only=local
        )
    )


def _is_complete(path: Path) -> bool:
    """Whether a cached snapshot holds the config and every shard; an interrupted download does not."""
    folder = ModelFolder(path)
    try:
        folder.config()
        folder.shards()
    except ModelError:
        return False
    return True
