"""Tiny Hugging Face folders."""

from __future__ import annotations

import json

import pytest

from paged_core.testing.tiny import write_tiny_llama


class Folder:
    """A sound tiny Llama on disk, and ways to spoil it."""

    def __init__(self, path):
        self.path = write_tiny_llama(path)

    def edit(self, name, **changes):
        """Change keys of a JSON file; None removes one."""
        path = self.path / name
        values = json.loads(path.read_text()) if path.exists() else {}
        values.update(changes)
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    def shard(self):
        """Split the weights over two files with an index; returns the tensors of the second."""
        from safetensors.torch import load_file, save_file

        tensors = load_file(self.path / "model.safetensors")
        names = sorted(tensors)
        parts = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
        for file, members in parts.items():
            save_file({name: tensors[name] for name in members}, self.path / file)
        mapping = {name: file for file, members in parts.items() for name in members}
        (self.path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
        (self.path / "model.safetensors").unlink()
        return names[10:]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "tiny")


@pytest.fixture
def open_loader():
    """The loader of a folder, through the provider, as the engine gets it."""
    from paged_load_hf import HfProvider

    from paged_core.api.loader import LoaderNeed

    provider = HfProvider()

    def open_it(path, **settings):
        return provider.create(LoaderNeed(str(path)), provider.Settings(**settings), None)

    return open_it
