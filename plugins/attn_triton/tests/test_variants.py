"""What is compiled: one variant of each kernel whatever the lengths, and none that Triton's compiler refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="there is no triton for this system")

COMPILE = """
import sys
from paged_attn_triton.shapes import Shape
from paged_attn_triton.variants import variants_of
for variant in variants_of(Shape(*sys.argv[1:3], 4, 2, 32, 16, 90), (True, True), 16):
    print(variant.name, len(variant.compile(90).asm["cubin"]) > 0)
"""


def compiled_by(*arguments: str) -> str:
    """What a process printed that compiles kernels, instead of interpreting them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON")}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_lengths_make_no_variants():
    counts = json.loads(compiled_by(str(Path(__file__).with_name("count_variants.py"))))
    assert counts == dict.fromkeys(
        ["write_kernel", "decode_kernel", "merge_kernel", "prefill_kernel", "copy_kernel"], 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float16", "float16"), ("bfloat16", "float8_e4m3fn")])
def test_every_kernel_compiles(dtype, kv_dtype):
    printed = compiled_by("-W", "error", "-c", COMPILE, dtype, kv_dtype).split("\n")
    assert printed[:-1] == [f"{name} True" for name in ("write", "decode", "merge", "prefill", "copy")]
