"""The tiny model with one embedding that is no number: a sequence that meets it computes NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.testing.tiny import write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

POISON = 300
"""The token with that embedding."""


def write_poisoned(folder: Path) -> Path:
    """Write the model into `folder` (created); returns it."""
    from safetensors.torch import load_file, save_file

    write_tiny_llama(folder)
    weights = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
