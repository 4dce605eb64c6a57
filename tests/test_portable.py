"""Every kernel on a plain processor: numba's generic one, torch and oneDNN held to AVX2, without bfloat16 arithmetic.

A fresh process answers by these; its float32 tokens are those of the processor's own kernels.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from paged_core import LLM, SamplingParams
from paged_core.testing import tiny

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="x86 alone can be held to less than it is"
    ),
]

PLAIN = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OMP_NUM_THREADS": "1",
}
WAYS: dict[str, dict[str, str]] = {
    "auto": {},
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
}
PROMPTS = ["hello", "the rain in the north, and then another one that fills several blocks"]
SETTINGS: dict[str, Any] = {"num_blocks": 64, "max_num_seqs": 4, "max_model_len": 128, "attn": "attn_cpu", "threads": 1}
COUNT = 24
SCRIPT = """
import json, sys
import torch
from numba.core.registry import cpu_target
from paged_core import LLM, SamplingParams
from paged_core.engine import hardware

hardware.cpu_has_bf16 = lambda read=None: False  # /proc/cpuinfo tells of more than this process may use
model, ways, settings, prompts, count = json.loads(sys.argv[1])
params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
found = {"processor": [torch.backends.cpu.get_cpu_capability(), *cpu_target.target_context.codegen().magic_tuple()[1:]]}
for name, way in ways.items():
    with LLM(model, **settings, **way) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        found[name] = [llm.engine.facts.dtype, [output.outputs[0].token_ids for output in outputs]]
print(json.dumps(found))
"""
EXACT = """
import torch
from paged_core.model.linear.int8 import MOST, OneDnnInt8Linear

for rows, inputs, outputs in ((1, 64, 32), (1, 576, 64), (7, 576, 960), (100, 1536, 576)):
    product = OneDnnInt8Linear(torch.ones(outputs, inputs))(torch.full((rows, inputs), 3.0))
    torch.testing.assert_close(product, torch.full((rows, outputs), 3.0 * inputs))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny checkpoint, which says of itself that it is bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.CONFIG, "dtype", "bfloat16")
        return str(tiny.write_tiny_llama(tmp_path_factory.mktemp("portable") / "model"))


def plain(code: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process that may use a plain processor only; its kernels stay in `cache`."""
    environment = {**os.environ, **PLAIN, "PAGED_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def answers(model: str, pytestconfig: pytest.Config) -> dict[str, Any]:
    """What the plain process said: its processor, and element type and tokens by way."""
    assert pytestconfig.cache is not None
    order = json.dumps([model, WAYS, SETTINGS, PROMPTS, COUNT])
    done = plain(SCRIPT, order, cache=pytestconfig.cache.mkdir("plain-kernels"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_float32_tokens_are_those_of_the_processors_own_kernels(model: str, answers: dict[str, Any]) -> None:
    assert answers["processor"] == ["AVX2", "generic", ""]
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    with LLM(model, dtype="float32", **SETTINGS) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert answers["float32"] == ["float32", expected]


def test_without_bfloat16_arithmetic_float32_is_the_default(answers: dict[str, Any]) -> None:
    assert answers["auto"] == answers["float32"]


def test_what_is_asked_for_is_answered_all_the_same(answers: dict[str, Any]) -> None:
    for name, dtype in (("bfloat16", "bfloat16"), ("int8", "float32")):
        assert answers[name][0] == dtype
        assert [len(tokens) for tokens in answers[name][1]] == [COUNT] * 2


def test_int8_products_are_exact_where_sixteen_bits_would_saturate(tmp_path: Path) -> None:
    done = plain(EXACT, cache=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_runs(model: str, answers: dict[str, Any], pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    command = "import sys; from paged_core.cli import main; main(sys.argv[1:])"
    flags = ["--dtype=float32", "--num-blocks=64", "--max-num-seqs=4", "--max-model-len=128", "--attn=cpu"]
    words = ["run", PROMPTS[0], "--raw", "--ignore-eos", f"--max-tokens={COUNT}", f"--model={model}", *flags]
    done = plain(command, *words, cache=pytestconfig.cache.mkdir("plain-kernels"))
    assert done.returncode == 0, done.stderr
    with LLM(model, dtype="float32", **SETTINGS) as llm:
        assert done.stdout == llm.tokenizer.decode(answers["float32"][1][0]) + "\n"
