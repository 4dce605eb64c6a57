"""`paged-core serve`: what is found wrong before a model is loaded, and what it says when it is ready."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from paged_core.cli import serve as command
from paged_core.engine.aio import AsyncLLM
from paged_core.testing.build import build_engine
from paged_core.testing.shadow import ShadowExecutor
from paged_core.testing.tiny import write_tiny_llama

HTTP = {"fastapi", "uvicorn", "starlette", "prometheus_client", "httptools", "ray", "paged_core.cluster"}


@pytest.fixture
def no_model(monkeypatch):
    """Loading a model is a failure of the test."""
    monkeypatch.setattr(command, "open_llm", lambda settings: pytest.fail("a model was loaded"))


def test_help_and_import_load_nothing_that_serves():
    script = "import sys, paged_core\n"
    script += "from paged_core.cli import main\n"
    for arguments in (["--help"], ["serve", "--help"]):
        script += f"try: main({arguments})\nexcept SystemExit: pass\n"
    script += f"print(sorted({HTTP} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--api-key" in done.stdout


def test_a_missing_extra_is_one_line_with_its_cure(invoke, no_model, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in ("fastapi", "uvicorn") else name)
    result = invoke("serve")
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert 'pip install "paged-core[serve]"' in line
    assert "fastapi, uvicorn" in line


def test_replicas_without_ray_are_one_line_with_its_cure(invoke, no_model, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "ray" else name)
    monkeypatch.setattr(command, "open_replicas", lambda *arguments: pytest.fail("replicas were started"))
    result = invoke("serve", "--replicas=2", "--port=0")
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert 'pip install "paged-core[ray]"' in line


def test_a_model_that_is_not_there_is_told_before_ray_is_started(invoke, no_model, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    result = invoke("serve", "nosuch", "--replicas=2", "--port=0")
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert "'nosuch'" in line


def test_without_replicas_nothing_of_ray_is_asked_for(invoke, monkeypatch):
    from paged_core.server import lifecycle

    llm = AsyncLLM(engine=build_engine(ShadowExecutor(4)))
    monkeypatch.setattr(command, "open_llm", lambda settings: llm)
    monkeypatch.setattr(command, "open_replicas", lambda *arguments: pytest.fail("replicas were started"))
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "ray" else name)
    monkeypatch.setattr(
        lifecycle, "serve", lambda sock, settings, load, ready: ready("http://x", load().state.server) or 0
    )
    assert invoke("serve", "mine", "--port=0").exit_code == 0


def test_an_address_in_use_is_told_before_a_model_is_loaded(invoke, no_model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = invoke("serve", f"--port={port}")
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--port=70000"], ["--drain=-1"], ["--max-body=huge"], ["a", "--model=b"]])
def test_wrong_settings_are_told_before_a_model_is_loaded(invoke, no_model, arguments):
    assert invoke("serve", "--port=0", *arguments).exit_code == 2


def test_settings_come_from_flags_environment_and_file(invoke, monkeypatch, tmp_path):
    from paged_core.server import app, lifecycle

    seen = {}
    llm = AsyncLLM(engine=build_engine(ShadowExecutor(4)))
    monkeypatch.setattr(command, "open_llm", lambda settings: seen.update(engine=settings) or llm)
    real = app.create_app
    monkeypatch.setattr(app, "create_app", lambda llm, settings: seen.update(serve=settings) or real(llm, settings))
    monkeypatch.setattr(
        lifecycle, "serve", lambda sock, settings, load, ready: ready("http://x", load().state.server) or 0
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paged.toml").write_text("block_size = 32\n[serve]\nport = 0\nmax_n = 3\ndrain = 1.5\n")
    monkeypatch.setenv("PAGED_SERVE_MAX_N", "4")
    monkeypatch.setenv("PAGED_SERVE_API_KEY", "one, two")
    result = invoke("serve", "mine", "--max-queue=7", "--num-blocks=5")
    assert result.exit_code == 0, result.stderr
    settings = seen["serve"]
    assert (settings.port, settings.max_n, settings.drain, settings.max_queue) == (0, 4, 1.5, 7)
    assert settings.api_key == ("one", "two")
    assert seen["engine"] == {"model": "mine", "num_blocks": 5}
    assert result.stdout.startswith("ready: http://x model=test kv_tokens=256 ")
    assert "sched=sched_fcfs" in result.stdout


@pytest.mark.parametrize(
    ("variable", "file", "told"),
    [
        ({"PAGED_SERVE_PROT": "1"}, "", "PAGED_SERVE_PROT: no such setting; did you mean PAGED_SERVE_PORT?"),
        ({"PAGED_SERVE_PORT": "x"}, "", "PAGED_SERVE_PORT (port)"),
        ({}, "[serve]\nprot = 1\n", "prot: no such setting; did you mean port?"),
        ({}, "serve = 3\n", "serve must be a table"),
    ],
)
def test_misspelt_settings_are_told_with_their_source(invoke, no_model, monkeypatch, tmp_path, variable, file, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paged.toml").write_text(file)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    result = invoke("serve")
    assert result.exit_code == 2
    assert told in result.stderr


def test_the_server_s_settings_trouble_no_other_command(invoke, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paged.toml").write_text("[serve]\nport = 9000\n")
    monkeypatch.setenv("PAGED_SERVE_PORT", "9001")
    assert invoke("plugins").exit_code == 0


@pytest.mark.slow
def test_a_process_serves_and_ends_well_on_sigterm(tmp_path):
    tiny = write_tiny_llama(tmp_path / "tiny")
    arguments = ["serve", str(tiny), "--port=0", "--num-blocks=64", "--max-num-seqs=4", "--dtype=float32"]
    program = [sys.executable, "-c", "from paged_core.cli import main; main()", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        body = json.dumps({"prompt": "hello", "max_tokens": 3}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        assert answer["usage"]["completion_tokens"] <= 3
        assert answer["model"] == str(tiny)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
