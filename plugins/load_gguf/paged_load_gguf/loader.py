"""GgufLoader: one GGUF file, given by path or by registry name, behind the Loader contract."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from paged_core.api.loader import Loader
from paged_core.errors import ModelError, ModelNotFoundError
from paged_core.model.weights import checked
from paged_load_gguf.architecture import spec_of
from paged_load_gguf.gguf_file import GgufFile
from paged_load_gguf.pull import cached_path, is_complete, pull
from paged_load_gguf.registry import MODELS
from paged_load_gguf.tokens import TokenMetadata, build_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from paged_core.api.loader import Tokenizer
    from paged_core.api.model import ModelSpec


class GgufLoader(Loader):
    """The file is opened on first use; tensors of unquantised types view its map.

    Its vocabulary is two lists of up to 100,000 strings each: they are let go of as soon as they were used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        """A file is where it is."""
        return self.path

    def spec(self) -> ModelSpec:
        """The architecture, from the metadata and the names of the tensors."""
        tokens = self._tokens
        return spec_of(self._file, tokens.token_id("bos"), tokens.eos_ids())

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the metadata, rebuilt (0.1 s for 49,152 tokens)."""
        tokens = self._tokens
        self._let_go()
        return build_tokenizer(tokens)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Canonical tensors, quantised ones as float32; complete and of the right shapes, or ModelFormatError."""
        from paged_load_gguf.weights import canonical_weights

        spec, file = self.spec(), self._file
        self._let_go()
        file.forget_lists()
        try:
            yield from checked(spec, canonical_weights(file, spec))
        except ModelError as error:
            if str(file.path) in str(error):
                raise
            raise type(error)(f"{file.path}: {error}") from error

    def _let_go(self) -> None:
        """The next use opens the file again."""
        for name in ("_file", "_tokens"):
            self.__dict__.pop(name, None)

    @cached_property
    def _file(self) -> GgufFile:
        return GgufFile(self.path)

    @cached_property
    def _tokens(self) -> TokenMetadata:
        return TokenMetadata(self._file.metadata, str(self._file.path))


class RegistryLoader(GgufLoader):
    """A model of the registry: a GGUF file in the cache that `pull` puts there."""

    def __init__(self, name: str, cache_dir: Path) -> None:
        self.model = MODELS[name]
        self.cache_dir = cache_dir
        super().__init__(cached_path(self.model, cache_dir))

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        """Fetch the file unless it is here, whole."""
        return pull(self.model, self.cache_dir, progress or (lambda line: None))

    @cached_property
    def _file(self) -> GgufFile:
        if not is_complete(self.model, self.path):
            name = self.model.name
            raise ModelNotFoundError(f"{name} is not (wholly) at {self.path} yet: run `paged-core pull {name}`")
        return GgufFile(self.path)
