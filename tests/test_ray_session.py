"""A cluster that cannot be joined is told in one line, and joining asks for no token that the cluster does not have."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from paged_core import ray_session
from paged_core.errors import ConfigError

CODE = """
import os, socket
from paged_core.errors import ConfigError
from paged_core.ray_session import enter

listener = socket.create_server(("127.0.0.1", 0))
closed = socket.create_server(("127.0.0.1", 0))
port = closed.getsockname()[1]
closed.close()
mode = os.environ.get("RAY_AUTH_MODE")
for address in ("nonsense", f"127.0.0.1:{port}", f"127.0.0.1:{listener.getsockname()[1]}"):
    try:
        enter(address, 1, False)
    except ConfigError as error:
        print(error)
assert os.environ.get("RAY_AUTH_MODE") == mode
"""


@pytest.mark.skipif(find_spec("ray") is None, reason='needs Ray: pip install "paged-core[ray]"')
def test_why_a_cluster_cannot_be_joined_is_one_line(tmp_path):
    """The last one is guarded by a token, which the user does not have: none is in this home."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        env={**own, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    nonsense, closed, guarded = done.stdout.splitlines()
    assert nonsense.startswith("no Ray cluster answers at nonsense: Invalid address")
    assert closed.endswith(": Connection refused")
    assert "no authentication token was found" in guarded


def test_a_cluster_that_is_joined_decides_on_tokens_itself(monkeypatch):
    """Only one that is begun here is made to ask for them."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(os, "environ", {})
    ray_session.prepare("auto")
    assert "RAY_AUTH_MODE" not in os.environ
    ray_session.prepare("")
    assert os.environ["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize("address", ["", "auto", "127.0.0.1:6379", "10.0.0.5:6379", "localhost:6379"])
def test_a_process_stays_in_its_cluster(address):
    ray_session._stay(address, "10.0.0.5:6379")


@pytest.mark.parametrize("address", ["127.0.0.1:6380", "10.0.0.6:6379", "10.0.0.5:1", "nonsense"])
def test_a_process_in_one_cluster_does_not_pretend_to_have_joined_another(address):
    with pytest.raises(ConfigError, match=f"in the Ray cluster at 10.0.0.5:6379 and cannot join {address}"):
        ray_session._stay(address, "10.0.0.5:6379")
