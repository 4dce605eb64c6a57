"""Kernels are compiled once and kept; damage, another source, another name or another architecture compile anew."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from paged_attn_cuda import compile as compile_module
from paged_attn_cuda.compile import SOURCES, Compiler, kernel_folder
from paged_attn_cuda.toolchain import Toolchain, find_toolchain

from paged_core.errors import PluginLoadError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_toolchain().reasons != (), reason="; ".join(find_toolchain().reasons))

HEADER = "namespace paged { template <class T> __device__ T twice(T x) { return x + x; } }\n"
SOURCE = """#include "twice.cuh"
namespace paged {
template <class T, int N> __global__ void scale(T* p) { p[threadIdx.x] = twice(p[threadIdx.x]) * N; }
}
"""
NAME = "paged::scale<float, 3>"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "twice.cuh").write_text(HEADER)
    (folder / "scale.cu").write_text(SOURCE)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_a_template_is_instantiated_by_name_and_reports_its_resources(sources, cache):
    binary = Compiler("sm_90", cache, sources).compile("scale.cu", NAME)
    assert binary.code.startswith(b"\x7fELF")
    assert binary.symbol.encode() in binary.code
    assert binary.symbol == "_ZN5paged5scaleIfLi3EEEvPT_"
    assert "Used " in binary.log
    assert "0 bytes spill stores" in binary.log


def test_what_was_compiled_is_taken_from_disk_and_only_the_first_time_is_told(sources, cache, told):
    first = Compiler("sm_80", cache, sources).compile("scale.cu", NAME)
    (file,) = cache.iterdir()
    before = file.stat().st_mtime_ns
    assert "compiling CUDA kernels for sm_80 (first run only)" in told.messages
    told.clear()
    assert Compiler("sm_80", cache, sources).compile("scale.cu", NAME) == first
    assert told.messages == []
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]


def test_one_compiler_tells_of_compiling_once(sources, cache, told):
    compiler = Compiler("sm_80", cache, sources)
    for count in (3, 4, 5):
        compiler.compile("scale.cu", f"paged::scale<float, {count}>")
    assert told.messages == ["compiling CUDA kernels for sm_80 (first run only)"]


def test_name_architecture_source_and_header_each_have_machine_code_of_their_own(sources, cache):
    Compiler("sm_80", cache, sources).compile("scale.cu", NAME)
    Compiler("sm_80", cache, sources).compile("scale.cu", "paged::scale<float, 4>")
    Compiler("sm_90", cache, sources).compile("scale.cu", NAME)
    assert len(list(cache.iterdir())) == 3
    (sources / "twice.cuh").write_text(HEADER.replace("x + x", "x + x + x"))
    Compiler("sm_90", cache, sources).compile("scale.cu", NAME)
    assert len(list(cache.iterdir())) == 4
    (sources / "scale.cu").write_text(SOURCE + "\n")
    Compiler("sm_90", cache, sources).compile("scale.cu", NAME)
    assert len(list(cache.iterdir())) == 5


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda body: body[:-40], id="truncated"),
        pytest.param(lambda body: b"", id="empty"),
        pytest.param(lambda body: body[:-1] + bytes([body[-1] ^ 1]), id="one bit flipped"),
        pytest.param(lambda body: b"[]\n" + body, id="not its header"),
        pytest.param(lambda body: b"\xff\xfe no JSON\n", id="nonsense"),
    ],
)
def test_a_damaged_file_is_told_and_compiled_again(sources, cache, told, damage):
    whole = Compiler("sm_80", cache, sources).compile("scale.cu", NAME)
    (file,) = cache.iterdir()
    body = file.read_bytes()
    file.write_bytes(damage(body))
    told.clear()
    again = Compiler("sm_80", cache, sources).compile("scale.cu", NAME)
    assert (again.code, again.symbol) == (whole.code, whole.symbol)
    assert any("is damaged" in message for message in told.messages)
    told.clear()
    assert Compiler("sm_80", cache, sources).compile("scale.cu", NAME) == again
    assert told.messages == []


def test_a_folder_that_cannot_be_written_is_one_warning(sources, tmp_path, told):
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    compiler = Compiler("sm_80", blocked / "kernels", sources)
    for count in (3, 4):
        assert compiler.compile("scale.cu", f"paged::scale<float, {count}>").code
    warnings = [record.getMessage() for record in told.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "cannot keep compiled CUDA kernels" in warnings[0]


def test_nothing_half_written_is_left_where_writing_fails(sources, cache, monkeypatch):
    from pathlib import Path

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert Compiler("sm_80", cache, sources).compile("scale.cu", NAME).code
    assert list(cache.iterdir()) == []


def test_without_a_folder_nothing_is_kept(sources, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    Compiler("sm_80", None, sources).compile("scale.cu", NAME)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "complaint"), [("paged::shrink<float>", "shrink"), ("paged::scale<nothing, 1>", "nothing")]
)
def test_an_error_carries_the_compilers_words_the_kernel_and_the_architecture(sources, cache, name, complaint):
    with pytest.raises(PluginLoadError) as caught:
        Compiler("sm_90", cache, sources).compile("scale.cu", name)
    text = str(caught.value)
    assert name in text
    assert "scale.cu" in text
    assert "sm_90" in text
    assert "NVRTC 1" in text
    assert f'"{complaint}"' in text
    assert "error:" in text
    assert "\0" not in text


def test_an_error_in_the_source_names_its_line(sources, cache):
    (sources / "scale.cu").write_text("\n\nint x = ;\n" + SOURCE)
    with pytest.raises(PluginLoadError, match=r"scale\.cu\(3\): error: expected an expression"):
        Compiler("sm_90", cache, sources).compile("scale.cu", NAME)


def test_an_architecture_that_does_not_exist_is_said(sources, cache):
    with pytest.raises(PluginLoadError, match="gpu-architecture"):
        Compiler("sm_31", cache, sources).compile("scale.cu", NAME)


def test_the_packages_own_sources_are_package_data():
    assert sorted(path.suffix for path in SOURCES.iterdir() if path.is_file())
    assert {path.suffix for path in SOURCES.iterdir() if path.is_file()} <= {".cu", ".cuh"}


def test_kernels_are_kept_where_the_engine_says_or_in_the_users_own_folder(tmp_path, monkeypatch, told):
    from pathlib import Path

    monkeypatch.setenv("HOME", str(tmp_path))
    assert kernel_folder("/somewhere") == Path("/somewhere/kernels-cuda")
    assert kernel_folder(None) == tmp_path / ".cache/paged-core/kernels-cuda"

    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert kernel_folder(None) is None
    assert "are not kept (Could not determine home directory.)" in told.text


def test_a_compiler_without_nvrtc_says_what_is_missing_and_how_to_get_it(sources, cache, monkeypatch):
    missing = Toolchain(reasons=("attn_cuda compiles its kernels by NVRTC, whose library is not here",))
    monkeypatch.setattr(compile_module, "find_toolchain", lambda: missing)
    with pytest.raises(PluginLoadError, match=r'library is not here\. Try: pip install "paged-core\[cuda\]"'):
        Compiler("sm_90", cache, sources)
