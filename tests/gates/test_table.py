"""The table of resources: what the gate objects to, how ptxas is read, and that the table is whole."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gate_table as table
import pytest
from cubin import parameter_sizes
from paged_attn_cuda.compile import Compiler
from paged_attn_cuda.toolchain import find_toolchain
from ptxas import resources

CUDA_LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kv' for 'sm_90'
ptxas info    : Function properties for _Z1kv
ptxas         .     48 bytes stack frame, 44 bytes spill stores, 88 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, 512 bytes smem
ptxas info    : Compile time = 1.841 ms"""
TRITON_LOG = """ptxas-blackwell info    : 11 bytes gmem
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas-blackwell info    : Used 96 registers, used 1 barriers, 472 bytes cmem[0]"""


def figures(**changes: Any) -> dict[str, Any]:
    """A kernel's row, sound but for the changes."""
    sound = dict.fromkeys(("stack", "spill_stores", "spill_loads", "static_shared"), 0)
    return {"registers": 96, **sound, "dynamic_shared": 40000} | changes


SPILLING = {"stack": 48, "spill_stores": 44, "spill_loads": 88}


def objections(known: dict[str, Any], found: dict[str, Any], *, same: bool = True) -> list[str]:
    return table.objections(known, found, 99 * 1024, same_compiler=same)


def test_what_ptxas_says_is_read_from_both_compilers():
    assert resources(CUDA_LOG, 1024) == {
        "registers": 255,
        "stack": 48,
        "spill_stores": 44,
        "spill_loads": 88,
        "static_shared": 512,
        "dynamic_shared": 1024,
    }
    assert resources(TRITON_LOG, 0) == figures(dynamic_shared=0)


@pytest.mark.parametrize("log", ["", CUDA_LOG + CUDA_LOG, CUDA_LOG.replace("registers", "regs")])
def test_another_wording_is_an_error_and_not_a_zero(log):
    with pytest.raises(ValueError, match="figures for"):
        resources(log, 0)


def test_the_same_figures_or_smaller_ones_hold():
    assert objections({"k": figures()}, {"k": figures()}) == []
    assert objections({"k": figures()}, {"k": figures(registers=80, dynamic_shared=0)}) == []


@pytest.mark.parametrize("figure", ["registers", "stack", "static_shared", "dynamic_shared"])
def test_growth_is_named_with_both_figures(figure):
    row = figures()
    (line,) = objections({"k": row}, {"k": figures(**{figure: row[figure] + 8})})
    assert line == f"k: {figure} grew from {row[figure]} to {row[figure] + 8}"


def test_a_spill_needs_a_reason_even_where_the_table_knows_it():
    for known in (figures(), figures(**SPILLING), figures(**SPILLING, reason="")):
        lines = objections({"k": known}, {"k": figures(**SPILLING)})
        assert "k: spills (44 bytes stored, 88 loaded), and the table gives no reason" in lines
    assert objections({"k": figures(**SPILLING, reason="once a tile")}, {"k": figures(**SPILLING)}) == []


def test_a_spill_with_a_reason_may_not_grow():
    known = {"k": figures(**SPILLING, reason="once a tile")}
    (line,) = objections(known, {"k": figures(**SPILLING | {"spill_loads": 96})})
    assert line == "k: spill_loads grew from 88 to 96"


def test_a_reason_for_a_spill_that_is_gone_has_to_go():
    (line,) = objections({"k": figures(**SPILLING, reason="once a tile")}, {"k": figures()})
    assert "spills no more" in line


def test_a_kernel_that_is_new_or_gone_is_named_with_the_cure():
    new, gone = objections({"old": figures()}, {"new": figures()})
    assert new.startswith("new: not in the table")
    assert gone.startswith("old: in the table, but there is no such kernel")
    assert "update_gates.py" in new
    assert "update_gates.py" in gone


def test_a_block_that_no_gpu_of_the_generation_can_run_is_refused_though_the_table_says_so():
    row = figures(static_shared=4096, dynamic_shared=100000)
    (line,) = objections({"k": row}, {"k": row})
    assert "104096 bytes of shared memory, a block may have 101376" in line


def test_figures_of_another_compiler_are_judged_by_spills_only():
    known = {"k": figures()}
    assert objections(known, {"k": figures(registers=200, dynamic_shared=50000)}, same=False) == []
    assert len(objections(known, {"k": figures(registers=200, **SPILLING)}, same=False)) == 1


def test_reasons_survive_an_update_as_long_as_there_is_a_spill():
    old = {"p": {"kernels": {"k": {"sm_80": figures(**SPILLING, reason="once a tile")}}}}
    found = {"sm_80": ("C 1", {"k": figures(**SPILLING), "new": figures(**SPILLING), "sound": figures()})}
    kernels = table.renewed(old, "p", found)["kernels"]
    assert kernels["k"]["sm_80"]["reason"] == "once a tile"
    assert kernels["new"]["sm_80"]["reason"] == ""
    assert "reason" not in kernels["sound"]["sm_80"]
    gone = table.renewed(old, "p", {"sm_80": ("C 1", {"k": figures()})})
    assert gone == {"compiler": "C 1", "kernels": {"k": {"sm_80": figures()}}}


def test_what_is_written_is_read_again_one_line_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "FILE", tmp_path / "resources.json")
    body = {"p": {"compiler": "C 1", "kernels": {"k<1>": {"sm_80": figures(), "sm_90": figures(reason="x")}}}}
    table.write(body)
    assert table.read() == body
    assert sum('"registers"' in line for line in table.FILE.read_text().splitlines()) == 2


def test_the_committed_table_is_of_every_plugin_and_architecture_as_the_script_writes_it(tmp_path, monkeypatch):
    text = table.FILE.read_text()
    body = json.loads(text)
    assert set(body) == set(table.PROGRAMS)
    for plugin in body:
        for name, archs in body[plugin]["kernels"].items():
            assert list(archs) == list(table.ARCHS), f"{plugin} {name}"
            for arch, row in archs.items():
                assert not table.objections({name: row}, {name: row}, table.largest_block(plugin, arch)), (plugin, arch)
    monkeypatch.setattr(table, "FILE", tmp_path / "resources.json")
    table.write(body)
    assert table.FILE.read_text() == text


def test_a_kernel_that_does_not_compile_is_told_in_the_compilers_words(tmp_path, monkeypatch):
    program = tmp_path / "measure.py"
    program.write_text("import sys; print('said'); sys.exit('error: identifier \"x\" is undefined')")
    monkeypatch.setitem(table.PROGRAMS, "attn_cuda", program)
    with pytest.raises(RuntimeError, match=r"attn_cuda does not compile for sm_90:\nsaid\n\nerror: identifier"):
        table.measure("attn_cuda", "sm_90")


def test_the_interpreter_of_the_tests_around_does_not_reach_the_gates(tmp_path, monkeypatch):
    program = tmp_path / "measure.py"
    program.write_text(
        "import json, os; print(json.dumps({'compiler': os.environ.get('TRITON_INTERPRET', 'none'), 'kernels': {}}))"
    )
    monkeypatch.setitem(table.PROGRAMS, "attn_triton", program)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert table.measure("attn_triton", "sm_80") == ("none", {})


def test_the_script_says_what_changed(repository):
    path = repository / "scripts/update_gates.py"
    spec = importlib.util.spec_from_file_location("update_gates", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    old, new = {"k": figures(), "gone": figures()}, {"k": figures(registers=90), "added": figures()}
    added, gone, changed = script.changes(old, new)
    assert added.startswith("+ added")
    assert gone == "- gone"
    assert changed == "  k: registers 96 -> 90"
    rows = {"k": {"sm_80": figures(**SPILLING, reason=""), "sm_90": figures(**SPILLING, reason="once")}}
    (line,) = script.unexplained({"attn_cuda": {"kernels": rows}})
    assert line.startswith("attn_cuda sm_80 k: spills")
    assert Path(script.table.__file__) == Path(table.__file__)


@pytest.mark.skipif(find_toolchain().reasons != (), reason="; ".join(find_toolchain().reasons))
def test_parameters_are_read_from_machine_code(tmp_path):
    (tmp_path / "k.cu").write_text(
        "__global__ void k(char a, double* b, int c, short d, long long e, float f) { *b = c; }"
    )
    binary = Compiler("sm_80", None, tmp_path).compile("k.cu", "k")
    assert parameter_sizes(binary.code, binary.symbol) == [1, 8, 4, 2, 8, 4]
    with pytest.raises(KeyError):
        parameter_sizes(binary.code, "another")
