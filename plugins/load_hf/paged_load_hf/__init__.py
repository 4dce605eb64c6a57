"""Hugging Face model folders (config.json and safetensors), local or by Hub id, for paged-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from paged_core.api.hookspecs import hookimpl
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider


class HfSettings(PluginSettings):
    """Settings of load_hf."""

    revision: str | None = Field(None, description="Branch, tag or commit of a Hub model; none: its main branch")
    ignore_remote_code: bool = Field(
        False,
        description="Load a model that ships code of its own (auto_map) with the built-in architecture of its name; "
        "the code itself is never run",
    )


class HfProvider(Provider[LoaderNeed, Loader]):
    """Loads folders with a config.json, and names of the form org/name."""

    name = "load_hf"
    kind = "loader"
    api = 1
    priority = 10
    summary = "Hugging Face folders (config.json + safetensors), local or by Hub id"
    Settings = HfSettings
    capabilities = frozenset({"pull"})

    def probe(self, need: LoaderNeed) -> Fit:
        """Fits an existing folder (a broken one is told by opening it) or a Hub id."""
        from paged_load_hf.hub import is_hub_id

        reasons = self.missing_capabilities(need.required)
        try:
            path = Path(need.model).expanduser()
            is_folder, exists = path.is_dir(), path.exists()
        except (OSError, ValueError, RuntimeError) as error:
            return Fit.judge([*reasons, f"{need.model!r} is not a usable path: {error}"])
        if exists and not is_folder:
            reasons.append(f"{need.model} is a file, not a folder")
        elif not exists and not is_hub_id(need.model):
            reasons.append(f"{need.model!r} is neither a folder here nor a Hub id of the form org/name")
        return Fit.judge(reasons, ["give a folder with config.json and model.safetensors, or a Hub id"])

    def create(self, need: LoaderNeed, settings: Any, plugins: PluginRegistry) -> Loader:
        """The loader of that folder; nothing is read yet."""
        from paged_load_hf import hub
        from paged_load_hf.loader import HfLoader

        path = Path(need.model).expanduser()
        if path.exists():
            return HfLoader(lambda progress: path, settings.ignore_remote_code)
        return HfLoader(lambda progress: hub.pull(need.model, settings.revision, progress), settings.ignore_remote_code)


@hookimpl
def paged_model_loader() -> HfProvider:
    """Registers the provider."""
    return HfProvider()
