"""Settings: sources and their order, mistakes in one line each; the cache folder and the memory limit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paged_core import settings as module
from paged_core.errors import ConfigError
from paged_core.settings import Settings, cache_dir


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """An empty current folder and an environment without our variables."""
    for name in [name for name in os.environ if name.startswith("PAGED_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def problems(**flags) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings.load(**flags)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_c01_flags_beat_environment_beats_file_beats_defaults(monkeypatch):
    assert Settings.load().block_size == 16
    Path("paged.toml").write_text("block_size = 8\nmax_num_seqs = 3\nchunked_prefill = false\nattn = 'file'\n")
    monkeypatch.setenv("PAGED_BLOCK_SIZE", "32")
    monkeypatch.setenv("PAGED_ATTN", "environment")
    settings = Settings.load(attn="flag", sched=None, disable_plugins=())
    assert (settings.attn, settings.block_size, settings.max_num_seqs) == ("flag", 32, 3)
    assert settings.chunked_prefill is False
    assert settings.sched == "auto"


def test_paged_config_names_another_file_which_must_exist(monkeypatch, tmp_path):
    Path("paged.toml").write_text("block_size = 8")
    (tmp_path / "other.toml").write_text("block_size = 64")
    monkeypatch.setenv("PAGED_CONFIG", "other.toml")
    assert Settings.load().block_size == 64
    monkeypatch.setenv("PAGED_CONFIG", "absent.toml")
    assert problems() == ["PAGED_CONFIG names absent.toml, which is not a file"]


def test_plugin_tables_merge_over_all_sources(monkeypatch):
    Path("paged.toml").write_text("[plugins.attn_x]\nsplit = 4\nmode = 'fast'\nwarps = 1\n")
    monkeypatch.setenv("PAGED_PLUGINS__ATTN_X__SPLIT", "8")
    monkeypatch.setenv("PAGED_PLUGINS__PAIR__SCHED_A__MODE", "slow")
    settings = Settings.load(plugins={"attn_x": {"warps": 2}})
    assert settings.plugins == {
        "attn_x": {"split": "8", "mode": "fast", "warps": 2},
        "pair": {"sched_a": {"mode": "slow"}},
    }


def test_every_mistake_is_one_line_that_names_its_source(monkeypatch):
    Path("paged.toml").write_text("block_sise = 8\nmax_num_seqs = true\nattn = 3\n")
    monkeypatch.setenv("PAGED_DTYPE", "fp8")
    monkeypatch.setenv("PAGED_AUDITT", "1")
    monkeypatch.setenv("PAGED_BLOCK_SIZE__X", "1")
    lines = problems(kv_memory="2 XB", device="tpu")
    assert len(lines) == 8
    assert set(lines) > {
        "paged.toml: block_sise: no such setting; did you mean block_size?",
        "paged.toml: max_num_seqs: cannot be true (got True)",
        "PAGED_AUDITT: no such setting; did you mean PAGED_AUDIT?",
    }
    text = "\n".join(lines)
    assert "kv_memory: is not an amount of memory" in text
    assert "PAGED_DTYPE (dtype): Input should be 'auto'" in text
    assert "paged.toml: attn: Input should be a valid string (got 3)" in text
    assert "PAGED_BLOCK_SIZE__X: no such setting" in text
    assert "device: Input should be 'auto', 'cpu' or 'cuda' (got 'tpu')" in text


def test_an_unknown_keyword_is_an_error_with_a_suggestion():
    assert problems(max_modle_len=3) == ["max_modle_len: no such setting; did you mean max_model_len?"]


def test_a_file_that_is_no_toml_is_one_line():
    Path("paged.toml").write_text("block_size == 8")
    assert len(problems()) == 1
    assert problems()[0].startswith("paged.toml: ")


def test_a_table_that_is_no_json_is_one_line(monkeypatch):
    monkeypatch.setenv("PAGED_PLUGINS", "{")
    assert len(problems()) == 1
    assert "PAGED_PLUGINS__ID__KEY=value" in problems()[0]


def test_variables_that_are_no_fields_are_allowed(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGED_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PAGED_SEED", "")  # empty counts as unset
    monkeypatch.setenv("PAGED_DISABLE_PLUGINS", "attn_a, attn_b,")
    monkeypatch.setenv("PAGED_PLUGIN_AUTOLOAD", "0")
    settings = Settings.load()
    assert settings.seed is None
    assert settings.disable_plugins == ("attn_a", "attn_b")
    assert settings.plugin_autoload is False


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("2GiB", 2 << 30),
        ("1.5 gib", 3 << 29),
        ("512MB", 512_000_000),
        ("3 KiB", 3072),
        ("7kb", 7000),
        ("9B", 9),
    ],
)
def test_amounts_of_memory(text, size):
    assert Settings.load(kv_memory=text).kv_memory == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 gigs", "1e9", "0", 0, -5, True, 1.5, "nan"])
def test_a_bad_amount_of_memory_is_one_line(text):
    lines = problems(kv_memory=text)
    assert len(lines) == 1
    assert lines[0].startswith("kv_memory: ")


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("block_size", (1, 256), (0, 257, 2.5, True, "many")),
        ("kv_memory_fraction", (0.1, 1), (0, 1.1, "half", True)),
        ("gpu_memory_utilization", (0.05, 1), (0, 1.1, "half", True)),
        ("enforce_eager", (True, "off"), ("perhaps", 2)),
        ("num_blocks", (1,), (0, -1)),
        ("host_memory", (0, "1GiB"), (-1,)),
        ("max_model_len", (1,), (0,)),
        ("max_num_seqs", (1,), (0,)),
        ("max_num_batched_tokens", (1,), (0,)),
        ("threads", (1,), (0,)),
        ("audit", (True, "on"), ("perhaps", 2)),
        ("seed", (-3, 0), ("x", True)),
    ],
)
def test_limits_of_every_number(field, good, bad):
    for value in good:
        Settings.load(**{field: value})
    for value in bad:
        assert len(problems(**{field: value})) == 1


def test_a_path_is_a_model_name(tmp_path):
    assert Settings.load(model=tmp_path).model == str(tmp_path)


def test_settings_are_frozen_and_every_field_is_described():
    with pytest.raises(ValueError, match="frozen"):
        Settings.load().seed = 3
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_importing_settings_pulls_in_no_compute_library():
    code = "import sys, paged_core.settings; assert not {'torch', 'numpy', 'numba', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# The cache folder (case C06)


@pytest.fixture
def fresh_cache():
    module._temporary_cache.cache_clear()
    yield
    module._temporary_cache.cache_clear()


def test_the_cache_folder_follows_the_variables_and_is_private(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / "home/.cache/paged-core"
    assert cache_dir().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/paged-core"
    monkeypatch.setenv("PAGED_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


def is_refused(folder: Path, caplog) -> str:
    """The cache falls back to a private folder, the same each time, with one warning, which is returned."""
    caplog.clear()
    caplog.set_level(logging.WARNING)
    found = cache_dir()
    assert found == cache_dir()
    assert found.resolve() != folder.resolve()
    assert found.stat().st_mode & 0o777 == 0o700
    assert found.stat().st_uid == os.getuid()
    assert len(caplog.records) == 1
    return caplog.text


def test_c06_a_foreign_folder_is_not_used(monkeypatch, tmp_path, caplog, fresh_cache):
    monkeypatch.setenv("PAGED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to another user" in is_refused(tmp_path, caplog)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link to another user")
def test_c06_a_foreign_link_is_not_followed(monkeypatch, tmp_path, caplog, fresh_cache):
    (tmp_path / "target").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    monkeypatch.setenv("PAGED_CACHE_DIR", str(link))
    assert cache_dir() == link  # a link of our own is fine
    os.chown(link, 12345, 12345, follow_symlinks=False)
    assert "belongs to another user" in is_refused(tmp_path / "target", caplog)


def test_c06_a_folder_open_to_all_is_not_used(monkeypatch, tmp_path, caplog, fresh_cache):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("PAGED_CACHE_DIR", str(tmp_path))
    assert "can be written by everybody" in is_refused(tmp_path, caplog)


def test_a_cache_folder_that_cannot_be_made_or_written_is_not_used(monkeypatch, tmp_path, caplog, fresh_cache):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGED_CACHE_DIR", str(tmp_path / "file/below"))
    assert "cannot be created" in is_refused(tmp_path / "file", caplog)
    monkeypatch.setenv("PAGED_CACHE_DIR", str(tmp_path / "locked"))
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    assert "is not writable" in is_refused(tmp_path / "locked", caplog)


def test_the_temporary_cache_goes_away_with_its_process(tmp_path):
    code = "from paged_core.settings import cache_dir; print(cache_dir())"
    environment = os.environ | {"PAGED_CACHE_DIR": "/dev/null/x", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
