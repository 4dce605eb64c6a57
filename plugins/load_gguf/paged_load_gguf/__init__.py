"""GGUF files, and a registry of small models by short names, for paged-core."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_load_gguf.registry import MODELS

if TYPE_CHECKING:
    from collections.abc import Sequence


class GgufSettings(PluginSettings):
    """Settings of load_gguf."""

    cache_dir: str | None = Field(None, description="Folder of pulled models; none: the engine's cache folder")


class GgufProvider(Provider[LoaderNeed, Loader]):
    """Loads what ends in .gguf or bears a name of the registry (`MODELS`)."""

    name = "load_gguf"
    kind = "loader"
    api = 1
    priority = 20
    summary = "GGUF files (F32, F16, BF16, Q4_0 to Q6_K), and small models by name: " + ", ".join(MODELS)
    Settings = GgufSettings
    capabilities = frozenset({"pull", "registry"})

    def probe(self, need: LoaderNeed) -> Fit:
        """Fits a registry name or an existing file that begins like a GGUF file."""
        reasons = self.missing_capabilities(need.required)
        if need.model not in MODELS:
            reasons += _reasons_against(need.model)
        return Fit.judge(reasons, [f"name a .gguf file or one of: {', '.join(MODELS)}"])

    def create(self, need: LoaderNeed, settings: Any, plugins: PluginRegistry) -> Loader:
        """The loader of that file; nothing is opened yet."""
        from paged_load_gguf.loader import GgufLoader, RegistryLoader

        if need.model in MODELS:
            return RegistryLoader(need.model, _cache_dir(settings.cache_dir or need.cache_dir))
        return GgufLoader(Path(need.model).expanduser())


def _cache_dir(stated: str | None) -> Path:
    return Path(os.path.expanduser(stated or "~/.cache/paged-core"))


def _reasons_against(model: str) -> Sequence[str]:
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return [f"{model} is a folder, not a GGUF file"]
        if not path.is_file():
            return [f"{model!r} is neither a file nor one of the models known by name ({', '.join(MODELS)})"]
        if path.suffix.lower() == ".gguf":
            return []  # a damaged one is ours too: opening it says what is wrong
        with path.open("rb") as file:
            return [] if file.read(4) == b"GGUF" else [f"{model} does not begin like a GGUF file"]
    except OSError as error:
        return [f"cannot read {model}: {error.strerror or error}"]
    except ValueError as error:  # a NUL in the name
        return [f"{model!r} is not a file name: {error}"]


@hookimpl
def paged_model_loader() -> GgufProvider:
    """Registers the provider."""
    return GgufProvider()
