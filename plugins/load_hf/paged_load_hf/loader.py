"""HfLoader: a Hugging Face folder, local or from the Hub's cache, behind the Loader contract."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paged_core.api.loader import Loader
from paged_core.errors import ModelError, ModelFormatError
from paged_core.model.spec import spec_from_hf
from paged_core.model.weights import checked, translate_hf
from paged_load_hf.folder import ModelFolder
from paged_load_hf.tokens import build_tokenizer, eos_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from paged_core.api.loader import Tokenizer
    from paged_core.api.model import ModelSpec

    Locate = Callable[[Callable[[str], None]], Path]


class HfLoader(Loader):
    """Tensors view the memory-mapped shards: a shard's pages are read when its tensors are.

    `locate` says where the folder is, fetching it if it must; it is called once, by `pull` or by what needs the files.
    """

    def __init__(self, locate: Locate, ignore_remote_code: bool = False) -> None:
        self._locate = locate
        self._ignore_remote_code = ignore_remote_code
        self._path: Path | None = None

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        """The folder, made local first when it is a Hub model that is not in the cache."""
        if self._path is None:
            self._path = self._locate(progress or (lambda line: None))
        return self._path

    def spec(self) -> ModelSpec:
        """The architecture, from config.json; end tokens from generation_config.json where it has them."""
        with _Located(self._folder.path):
            spec = spec_from_hf(self._config)
        return replace(spec, eos_token_ids=eos_ids(self._folder, self._config))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder; transformers is imported only when there is no tokenizer.json."""
        return build_tokenizer(self._folder, self._config)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Canonical tensors in shard order; complete and of the right shapes, or ModelFormatError."""
        spec = self.spec()
        with _Located(self._folder.path):
            yield from checked(spec, self._canonical(spec))

    def _canonical(self, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
        from paged_core.model.safetensors_file import SafetensorsFile

        for path, expected in self._folder.shards().items():
            shard = SafetensorsFile(path)
            names = frozenset(shard.tensors)
            if expected is not None and names != expected:
                lost, stray = sorted(expected - names), sorted(names - expected)
                fault = f"lacks tensor {lost[0]!r}, which" if lost else f"holds tensor {stray[0]!r}, which"
                message = f"shard {path} {fault} the index {'puts there' if lost else 'does not know'}; fetch it again"
                raise ModelFormatError(message)
            for name in shard.tensors:
                yield from translate_hf(spec, name, shard.tensor(name))

    @cached_property
    def _folder(self) -> ModelFolder:
        folder = ModelFolder(self.pull())
        folder.config()  # a folder that is none should say so first
        if not self._ignore_remote_code:
            folder.refuse_code()
        return folder

    @cached_property
    def _config(self) -> dict[str, Any]:
        return self._folder.config()


class _Located:
    """Puts the folder in front of a model error that does not name it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModelError) and str(self.path) not in str(error):
            raise type(error)(f"{self.path}: {error}") from error
