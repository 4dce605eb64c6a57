"""Broken loaders, each load_hf with one defect. `test_loader_mutants.py` names the test that catches it."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_core.api.hookspecs import hookimpl
from paged_core.api.loader import Loader, LoaderNeed
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider
from paged_core.errors import ModelError, ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Wrapped(Loader):
    """load_hf, passed on faithfully; a mutant overrides one method."""

    def __init__(self, inner: Loader, path: Path) -> None:
        self.inner = inner
        self.path = path

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        return self.inner.pull(progress)

    def spec(self) -> Any:
        return self.inner.spec()

    def tokenizer(self) -> Any:
        return self.inner.tokenizer()

    def weights(self) -> Iterator[tuple[str, Any]]:
        yield from self.inner.weights()


class MissingUnnoticed(Wrapped):
    """Hands out what is there and says nothing of what is not."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        try:
            yield from self.inner.weights()
        except ModelFormatError:
            return


class ZerosWhereCut(Wrapped):
    """Fills what a damaged file lacks with zeros."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        import torch

        from paged_core.model.weights import expected_shapes

        given = set()
        try:
            for name, tensor in self.inner.weights():
                given.add(name)
                yield name, tensor
        except ModelFormatError:
            for name, shape in expected_shapes(self.spec()).items():
                if name not in given:
                    yield name, torch.zeros(shape)


class QueriesAndOutputsSwapped(Wrapped):
    """Confuses two projections of equal shape."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.inner.weights():
            for one, other in ((".attn.q.", ".attn.o."), (".attn.o.", ".attn.q.")):
                if one in name:
                    name = name.replace(one, other)
                    break
            yield name, tensor


class FirstTensorTwice(Wrapped):
    """A stale copy of a tensor comes along."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        for i, pair in enumerate(self.inner.weights()):
            yield pair
            if i == 0:
                yield pair


class ReadsOnce(Wrapped):
    """The stream of weights is used up after one pass."""

    stream: Any = None

    def weights(self) -> Iterator[tuple[str, Any]]:
        self.stream = self.stream or self.inner.weights()
        yield from self.stream


class RaisesKeyErrors(Wrapped):
    """What a file lacks is a KeyError."""

    def spec(self) -> Any:
        try:
            return self.inner.spec()
        except ModelError as error:
            raise KeyError("hidden_size") from error


class NamesNoFile(Wrapped):
    """Says that something is damaged, not what."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        try:
            yield from self.inner.weights()
        except ModelFormatError as error:
            raise ModelFormatError("the checkpoint is damaged") from error


class OpensPickles(Wrapped):
    """Opens whatever weights there are."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        for path in self.path.glob("*.bin"):
            pickle.loads(path.read_bytes())
        yield from self.inner.weights()


class RunsTheModelsCode(Wrapped):
    """Imports what auto_map names before it looks any further."""

    def pull(self, progress: Callable[[str], None] | None = None) -> Path:
        for path in self.path.glob("*.py"):
            exec(compile(path.read_text(), str(path), "exec"), {})
        return self.inner.pull(progress)


class LendsItsBuffer(Wrapped):
    """One buffer for all threads that encode."""

    def tokenizer(self) -> Any:
        return SharedBuffer(self.inner.tokenizer())


class DropsHalfCharacters(Wrapped):
    """Leaves out what is not a whole character yet."""

    def tokenizer(self) -> Any:
        return WholeCharacters(self.inner.tokenizer())


class Passing:
    """A tokenizer passed on faithfully."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class SharedBuffer(Passing):
    """Encodes what somebody last put into the buffer."""

    text = ""

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        self.text = text
        time.sleep(1e-4)
        return self.inner.encode(self.text, add_special_tokens)


class WholeCharacters(Passing):
    """Decodes without U+FFFD."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = True) -> str:
        return self.inner.decode(token_ids, skip_special_tokens).replace("\ufffd", "")


class MutantProvider(Provider[LoaderNeed, Loader]):
    """Offers one mutant; it takes what load_hf takes."""

    kind = "loader"
    api = 1
    priority = -1

    def __init__(self, name: str, mutant: type[Wrapped]) -> None:
        self.name = name  # type: ignore[misc]
        self.summary = mutant.__doc__ or ""  # type: ignore[misc]
        self._mutant = mutant

    def probe(self, need: LoaderNeed) -> Fit:
        reasons = self.missing_capabilities(need.required)
        if not Path(need.model).is_dir():
            reasons.append(f"{need.model} is no folder")
        return Fit.judge(reasons)

    def create(self, need: LoaderNeed, settings: PluginSettings, plugins: PluginRegistry) -> Loader:
        return self._mutant(plugins.create("loader", "load_hf", need), Path(need.model))


MUTANTS = {
    "load_missing_unnoticed": MissingUnnoticed,
    "load_zeros": ZerosWhereCut,
    "load_swapped": QueriesAndOutputsSwapped,
    "load_twice": FirstTensorTwice,
    "load_once": ReadsOnce,
    "load_key_errors": RaisesKeyErrors,
    "load_nameless": NamesNoFile,
    "load_pickles": OpensPickles,
    "load_runs_code": RunsTheModelsCode,
    "load_shared_buffer": LendsItsBuffer,
    "load_whole_characters": DropsHalfCharacters,
}


@hookimpl
def paged_model_loader() -> list[MutantProvider]:
    return [MutantProvider(name, mutant) for name, mutant in MUTANTS.items()]
