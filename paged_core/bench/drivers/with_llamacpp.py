"""llama.cpp's server, asked over HTTP. `model` is a GGUF file; `settings` has the server's binary and its slots."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_CONTEXT = 1088  # tokens a slot
_PATIENCE_S = 900


class LlamaCpp:
    """A server process and as many waiting callers as it has slots."""

    def __init__(self, server: str, model: str, threads: int, slots: int) -> None:
        version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
        self.version = f"llama.cpp server {_build(version.stdout + version.stderr)}"
        self._url = f"http://127.0.0.1:{_free_port()}"
        port = self._url.rpartition(":")[2]
        command = [server, "-m", model, "-t", str(threads), "-tb", str(threads), "-np", str(slots)]
        command += ["-c", str(_CONTEXT * slots), "-b", "2048", "-ub", "512", "--no-webui", "--cache-ram", "0"]
        self._process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", port])
        self._callers = ThreadPoolExecutor(slots)
        self._wait()

    def generate(self, prompts: list[list[int]], outputs: list[int]) -> list[list[int]]:
        """All at once, as far as there are slots."""
        return list(self._callers.map(self._complete, prompts, outputs))

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()

    def _complete(self, prompt: list[int], output: int) -> list[int]:
        body = {"prompt": prompt, "n_predict": output, "ignore_eos": True, "temperature": 0}
        body |= {"cache_prompt": False, "return_tokens": True}
        tokens: list[int] = self._call("/completion", body)["tokens"]
        return tokens

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self._url + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer

    def _wait(self) -> None:
        """Until the server says that its model is loaded."""
        while self._process.poll() is None:
            try:
                self._call("/health")
                return
            except (urllib.error.URLError, ConnectionError):  # not listening yet, or 503 while it loads
                time.sleep(0.02)
        raise RuntimeError(f"the server ended with code {self._process.returncode}")


def _build(text: str) -> str:
    return next((line.split()[1] for line in text.splitlines() if line.startswith("version:")), "of unknown version")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def load(order: dict[str, Any]) -> LlamaCpp:
    """The server that the order names."""
    settings = order["settings"]
    return LlamaCpp(settings["server"], order["model"], order["threads"], settings["slots"])
