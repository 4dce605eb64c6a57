"""A Hugging Face model folder: its JSON files, and which safetensors file holds which tensor. Nothing is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paged_core.errors import ModelFormatError, ModelNotFoundError, ModelUnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# Every file in which a model can ask for code of its own to be imported.
MAY_NAME_CODE = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "adapter_config.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)


class ModelFolder:
    """Read access to one folder. Every error is one line naming the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self) -> dict[str, Any]:
        """config.json, parsed. Raises ModelNotFoundError when this is not a model folder."""
        if not self.path.is_dir():
            raise ModelNotFoundError(f"there is no folder {self.path}")
        if not (self.path / "config.json").is_file():
            if (self.path / "adapter_config.json").is_file():
                raise ModelUnsupportedError(
                    f"{self.path} holds an adapter, not a model; give the model it was made for"
                )
            raise ModelNotFoundError(f"{self.path} has no config.json: it is not a Hugging Face model folder")
        return self.json("config.json")

    def json(self, name: str) -> dict[str, Any]:
        """One JSON file as an object; {} when it is absent. Raises ModelFormatError when it is anything else."""
        path = self.path / name
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise ModelFormatError(f"{path} is not valid JSON: {error}") from error
        except OSError as error:
            raise ModelNotFoundError(f"cannot read {path}: {error.strerror or error}") from error
        if not isinstance(value, dict):
            raise ModelFormatError(f"{path} holds a {type(value).__name__}, not an object")
        return value

    def text(self, name: str) -> str | None:
        """One text file, None when it is absent."""
        try:
            return (self.path / name).read_text("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{self.path / name} is not UTF-8 text") from error
        except OSError as error:
            raise ModelNotFoundError(f"cannot read {self.path / name}: {error.strerror or error}") from error

    def refuse_code(self) -> None:
        """Raise ModelUnsupportedError when any file asks for the model's own code (`auto_map`), however deep."""
        for name in MAY_NAME_CODE:
            if _mentions(self.json(name), "auto_map"):
                raise ModelUnsupportedError(
                    f"{self.path / name} has an auto_map: the model wants to run code of its own, which never happens "
                    "here. If its architecture is built in, set ignore_remote_code of load_hf to use that instead."
                )

    def shards(self) -> dict[Path, frozenset[str] | None]:
        """The weight files in order, each with the tensors the index expects there (None: no index, all of them).

        Raises ModelFormatError naming a shard that is missing, ModelUnsupportedError when only pickles are there.
        """
        if (self.path / SINGLE).is_file():
            return {self.path / SINGLE: None}
        if (self.path / INDEX).is_file():
            return dict(self._indexed())
        found = sorted(self.path.glob("*.safetensors"))
        if found:
            message = f"{self.path} has {found[0].name} but neither {SINGLE} nor {INDEX}; fetch the index too"
            raise ModelFormatError(message)
        pickles = sorted(path.name for pattern in PICKLES for path in self.path.glob(pattern))
        if pickles:
            raise ModelUnsupportedError(
                f"{self.path} holds its weights as a pickle ({pickles[0]}), which can run code when opened; "
                "convert them to safetensors (save_pretrained of a current transformers writes them)"
            )
        raise ModelNotFoundError(f"{self.path} has no weights: {SINGLE} or {INDEX} is expected")

    def _indexed(self) -> dict[Path, frozenset[str]]:
        mapping = self.json(INDEX).get("weight_map")
        if not isinstance(mapping, dict) or not mapping or not all(isinstance(file, str) for file in mapping.values()):
            raise ModelFormatError(f"{self.path / INDEX} has no weight_map from tensors to files")
        names: dict[str, set[str]] = {}
        for tensor, file in mapping.items():
            names.setdefault(file, set()).add(tensor)
        for file, tensors in names.items():
            if "/" in file or "\\" in file or not file.endswith(".safetensors"):
                raise ModelFormatError(f"{self.path / INDEX} names {file!r}, which is not a safetensors file beside it")
            if not (self.path / file).is_file():
                raise ModelFormatError(
                    f"shard {file} of {self.path} is missing: the index expects {len(tensors)} tensors in it, "
                    f"{min(tensors)!r} among them; fetch it"
                )
        return {self.path / file: frozenset(names[file]) for file in sorted(names)}


def _mentions(value: Any, key: str) -> bool:
    """Whether `key` occurs anywhere in parsed JSON. Iterative: files may be nested deeper than the stack."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if key in item:
                return True
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
