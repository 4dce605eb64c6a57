"""Models for judging a loader: those it accepts, copies of them to be damaged, and what reading one whole means."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.api.loader import LoaderNeed
from paged_core.errors import ModelError
from paged_core.model.weights import expected_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from paged_conformance.candidate import Candidate
    from paged_core.api.loader import Loader
    from paged_core.api.model import ModelSpec

REFUSED = "refused by probe: "


def accepted(loader: Candidate, paths: Sequence[Path]) -> list[Path]:
    """Those of `paths` that the loader's probe accepts."""
    return [path for path in paths if loader.fit(LoaderNeed(str(path))).ok]


def open_loader(loader: Candidate, path: Path) -> Loader:
    """The loader of one model."""
    opened: Loader = loader.create(LoaderNeed(str(path)))
    return opened


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Everything a loader says about a model."""

    spec: ModelSpec
    tokenizer: Any
    weights: dict[str, Tensor]


def read_whole(loader: Candidate, path: Path) -> WholeModel:
    """Pull, spec, tokenizer and all weights, complete by `expected_shapes`.

    Raises AssertionError where the loader gives out a model that is not whole, and whatever the loader raises.
    """
    opened = open_loader(loader, path)
    opened.pull()
    spec = opened.spec()
    tokenizer = opened.tokenizer()
    weights: dict[str, Tensor] = {}
    for name, tensor in opened.weights():
        assert name not in weights, f"{path}: tensor {name} came twice"
        weights[name] = tensor
    check_complete(spec, weights, path)
    return WholeModel(spec, tokenizer, weights)


def check_complete(spec: ModelSpec, weights: dict[str, Tensor], path: Path) -> None:
    """Assert that the weights are those of the spec, by canonical name and shape."""
    wanted = expected_shapes(spec)
    missing, strange = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    assert not missing, f"{path}: {len(missing)} tensors never came, {missing[:3]} among them"
    assert not strange, f"{path}: tensors that this {spec.architecture} does not have: {strange[:3]}"
    for name, shape in wanted.items():
        assert tuple(weights[name].shape) == shape, f"{path}: {name} is {tuple(weights[name].shape)}, not {shape}"
        assert weights[name].is_floating_point(), f"{path}: {name} is of type {weights[name].dtype}"


def complaint(loader: Candidate, path: Path) -> str | None:
    """What the loader says of a damaged model; None when it read it whole.

    Any exception but a ModelError, and any message of more than one line, is a failure of the loader.
    """
    fit = loader.fit(LoaderNeed(str(path)))
    if not fit.ok:
        return REFUSED + "; ".join(fit.reasons)
    try:
        read_whole(loader, path)
        return None
    except ModelError as error:
        told, message = type(error).__name__, str(error)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{path} is damaged; {loader.name} raised {type(error).__name__}: {error}, which is no ModelError"
        ) from error
    assert message.strip(), f"{told} about {path} without a message"
    assert "\n" not in message, f"a complaint of more than one line about {path}: {message!r}"
    return message


class Patient:
    """A copy of a sound model that can be damaged: a folder or a single file."""

    def __init__(self, source: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / source.name
        if source.is_dir():
            shutil.copytree(source, self.path, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, self.path)

    @property
    def files(self) -> list[Path]:
        """Its files, the largest (the weights) first."""
        found = [path for path in self.path.rglob("*") if path.is_file()] if self.path.is_dir() else [self.path]
        return sorted(found, key=lambda path: -path.stat().st_size)

    def replace(self, file: Path, data: bytes) -> None:
        """Give a file other contents, as a new file: nobody's memory map of the old one is touched."""
        file.unlink(missing_ok=True)
        file.write_bytes(data)
