"""The provider's verdicts, its imports and the compile cache."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from paged_attn_cpu import CpuAttentionProvider, entry, paged_attention

from paged_core.api.attention import AttentionNeed
from paged_core.native.compile import use_cache_dir

NEED = AttentionNeed("cpu", "bfloat16", "bfloat16", 9, 3, 64, 16)


def test_fits_a_plain_need_and_all_it_declares():
    provider = paged_attention()
    assert provider.probe(NEED).ok
    assert provider.probe(replace(NEED, required=provider.capabilities)).ok


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"device": "cuda"}, "device cpu only, not on cuda"),
        ({"dtype": "float64"}, "float64 for the activations"),
        ({"kv_dtype": "float8_e4m3fn"}, "float8_e4m3fn for the KV cache"),
        ({"head_dim": 257}, "head_dim <= 256, not 257"),
        ({"block_size": 257}, "block_size <= 256, not 257"),
        ({"block_size": 0}, "not 0"),
        ({"num_kv_heads": 2}, "2 KV heads among 9"),
        ({"required": frozenset({"fp8"})}, "'fp8'"),
    ],
)
def test_says_why_a_need_does_not_fit(change, reason):
    fit = CpuAttentionProvider().probe(replace(NEED, **change))
    assert not fit.ok
    assert reason in fit.reasons[0]


def test_all_reasons_at_once():
    need = replace(NEED, device="cuda", dtype="float64", head_dim=300, required=frozenset({"x"}))
    assert len(CpuAttentionProvider().probe(need).reasons) == 4


def test_numba_missing_is_a_reason_with_its_cure(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fit = CpuAttentionProvider().probe(NEED)
    assert "numba" in fit.reasons[0]
    assert fit.hints == ("pip install numba",)


def test_import_and_probe_pull_in_nothing_heavy():
    code = (
        "import sys, paged_attn_cpu\n"
        "from paged_core.api.attention import AttentionNeed\n"
        "assert paged_attn_cpu.paged_attention().probe(AttentionNeed('cpu','float32','float32',4,2,16,4)).ok\n"
        "print([m for m in ('torch', 'numba', 'triton', 'llvmlite', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_settings_refuse_a_typo():
    with pytest.raises(ValueError, match="thread"):
        CpuAttentionProvider.Settings(thread=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        CpuAttentionProvider.Settings(threads=-1)  # type: ignore[call-arg]


COPY = (
    "import sys, logging; logging.basicConfig(stream=sys.stdout, format='%(levelname)s %(message)s')\n"
    "import numba\n"
    "numba.config.CACHE_DIR = sys.argv[1]\n"
    "from paged_attn_cpu import entry\n"
    "compiled = entry.compile_native(entry.copy_function(entry.source_digest()))\n"
    "assert compiled.address\n"
    "print('hits', compiled.cache_hits)\n"
)


def run_copy(folder):
    done = subprocess.run(
        [sys.executable, "-c", COPY, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_second_process_loads_what_the_first_compiled(tmp_path):
    assert "hits 0" in run_copy(tmp_path)
    assert "hits 1" in run_copy(tmp_path)


def test_case_c05_without_a_cache_folder_it_compiles_and_warns_once():
    """Case C05: read-only package, no cache variable, no writable home: numba finds no place at all."""
    nowhere = "from numba.core import caching\ncaching.CacheImpl._locator_classes = []\n"
    done = subprocess.run(
        [sys.executable, "-c", COPY.replace("import entry\n", "import entry\n" + nowhere), ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("WARNING") == 1
    assert "cache_dir" in done.stdout
    assert "hits 0" in done.stdout


def test_unusable_cache_dir_is_said_and_numbas_own_place_used(tmp_path, monkeypatch, caplog):
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    use_cache_dir(str(blocked / "cache"))
    assert numba.config.CACHE_DIR == ""
    assert f"cannot keep compiled kernels in {blocked}/cache" in caplog.text


def test_a_changed_kernel_source_is_a_cache_miss():
    """numba looks at one file's date only; the digest of all sources is in the closure and so in the key."""
    function = entry.copy_function("one")
    assert function.__closure__ is not None
    assert [cell.cell_contents for cell in function.__closure__] == ["one"]
    assert len(entry.source_digest()) == 64


def test_setting_cache_dir_reaches_numba(tmp_path, monkeypatch):
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)
    monkeypatch.setattr(entry, "compile_native", lambda function: type("Compiled", (), {"address": 1})())
    provider = CpuAttentionProvider()
    provider.create(NEED, provider.Settings(cache_dir=str(tmp_path), threads=1), None)  # type: ignore[arg-type, call-arg]
    assert str(tmp_path) == numba.config.CACHE_DIR
