"""Nothing in a model's files is ever executed: no pickle is opened, no code of the model's own is imported."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from paged_core.errors import ModelUnsupportedError

ROOT = Path(__file__).resolve().parents[3]


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.fixture
def marker(tmp_path):
    """Exists once somebody ran what they must not."""
    path = tmp_path / "marker"
    pickle.loads(pickle.dumps(Payload(path)))
    assert path.exists()  # the trap works
    path.unlink()
    return path


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt"])
def test_pickles_are_refused_unopened(name, folder, open_loader, marker):
    (folder.path / "model.safetensors").unlink()
    (folder.path / name).write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ModelUnsupportedError, match=rf"pickle \({name}\).*convert them to safetensors"):
        list(open_loader(folder.path).weights())
    assert not marker.exists()


def test_safetensors_are_preferred_to_a_pickle_beside_them(folder, open_loader, marker):
    (folder.path / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))
    assert len(dict(open_loader(folder.path).weights())) == 21
    assert not marker.exists()


def test_a_pickle_under_a_safetensors_name_is_no_safetensors_file(folder, open_loader, marker):
    (folder.path / "model.safetensors").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(Exception, match=r"model\.safetensors is damaged"):
        list(open_loader(folder.path).weights())
    assert not marker.exists()


AUTO_MAP = {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config.json", AUTO_MAP),
        ("config.json", {"text_config": {"inner": [AUTO_MAP]}}),
        ("generation_config.json", AUTO_MAP),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}),
        ("processor_config.json", AUTO_MAP),
        ("preprocessor_config.json", AUTO_MAP),
        ("adapter_config.json", AUTO_MAP),
    ],
)
def test_code_of_the_models_own_is_refused_by_the_name_of_its_flag(name, values, folder, open_loader, marker):
    (folder.path / "evil.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    folder.edit(name, **values)
    for use in ("spec", "tokenizer", "weights"):
        with pytest.raises(ModelUnsupportedError, match=rf"{name}.*auto_map"):
            list(getattr(open_loader(folder.path), use)() or ())
    loader = open_loader(folder.path, ignore_remote_code=True)
    assert loader.spec().architecture == "LlamaForCausalLM"
    assert loader.tokenizer().encode("a")
    assert len(dict(loader.weights())) == 21
    assert not marker.exists()


def test_no_unpickling_and_no_trusted_code_anywhere_in_the_repository():
    """But for what an engine and its own workers say to each other, over sockets that nobody else can reach."""
    own = {ROOT / "paged_core/model/parallel" / name for name in ("message.py", "sampling_state.py")}
    found = []
    for path in [*(ROOT / "paged_core").rglob("*.py"), *(ROOT / "plugins").glob("*/paged_*/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                trusted = not (isinstance(node.value, ast.Constant) and node.value.value is False)
                found += [f"{path}: trust_remote_code"] * trusted
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                unpickles = name in ("torch.load", "pickle.load", "pickle.loads") and path not in own
                found += [f"{path}: {name}"] * unpickles
    assert found == []
