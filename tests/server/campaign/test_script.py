"""The script a user would write: nothing but `openai.OpenAI(base_url, api_key)`, run as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("openai_script.py")


@pytest.mark.model
@pytest.mark.slow
def test_an_unmodified_openai_script_does_everything_with_smollm2(smollm2_server):
    environment = {**os.environ, "OPENAI_BASE_URL": f"{smollm2_server.url}/v1", "OPENAI_API_KEY": smollm2_server.key}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["models"] == ["smollm2-135m"]
    assert told["streamed"] == told["whole"] != ""
    assert told["num_parts"] > 3
    assert len(told["logprobs"]) == 5
    assert all(-30 < logprob <= 0 for logprob in told["logprobs"])
    assert set(told["person"]) == {"name", "age"}
    assert isinstance(told["person"]["age"], int)
    assert told["call"]["name"] == "get_weather"
    assert set(told["call"]["arguments"]) == {"city", "unit"}
    assert told["finish_reason"] == "tool_calls"
