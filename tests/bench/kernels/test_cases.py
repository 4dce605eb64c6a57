"""Bytes and operations by hand; which cases there are."""

from __future__ import annotations

from paged_core.bench.kernels.cases import (
    CHUNK,
    HEADS,
    OPERATIONS,
    Case,
    Heads,
    activations,
    cases,
    chosen,
    moves,
)

FEW = Heads(4, 2, 16)


def test_bytes_and_operations_of_a_case() -> None:
    assert Case(FEW, 3, 10).kv_bytes("bfloat16") == 3 * 10 * 2 * 2 * 16 * 2
    assert Case(FEW, 3, 10).kv_bytes("float8_e4m3fn") == 3 * 10 * 2 * 2 * 16
    assert Case(FEW, 3, 10).ops == 3 * 10 * 4 * 4 * 16
    assert Case(FEW, 1, 4, 4).ops == (1 + 2 + 3 + 4) * 4 * 4 * 16
    assert Case(FEW, 1, 4, 2).ops == (3 + 4) * 4 * 4 * 16


def test_bytes_of_codes_include_step_and_minimum_of_each_row() -> None:
    assert Case(FEW, 3, 10).kv_bytes("uint8") == 3 * 10 * 2 * 2 * (16 + 8)


def test_a_write_moves_q_k_v_and_out_and_k_and_v_there_and_back() -> None:
    activations_bytes = (2 * 4 + 2 * 2) * 16 * 2
    stored = 2 * 2 * 16 * 2
    assert Case(FEW, 5, 1).moved_bytes("bfloat16", "bfloat16") == 5 * (activations_bytes + 2 * stored)


def test_every_device_has_cases_of_every_kind_and_all_heads() -> None:
    kinds = {"decode", "prefill", "write"}
    for device in ("cpu", "cuda"):
        for quick in (True, False):
            found = cases(device, OPERATIONS, quick)
            assert {case.kind for case in found} == kinds
            assert len(set(found)) == len(found)
    on_gpu = cases("cuda", OPERATIONS, False)
    assert {case.heads for case in on_gpu} == set(HEADS.values())
    decodes = [case for case in on_gpu if case.kind == "decode"]
    assert {min(case.context for case in decodes), max(case.context for case in decodes)} == {64, 32768}
    assert {min(case.sequences for case in decodes), max(case.sequences for case in decodes)} == {1, 256}
    assert any(case.new == CHUNK < case.context for case in on_gpu)
    assert [case.kind for case in cases("cuda", ["write"], False)] == ["write"] * 9


def test_what_is_asked_for_is_combined_and_long_prompts_have_a_chunk() -> None:
    found = chosen(OPERATIONS, [FEW], [64, 4096], [1, 3])
    assert len([case for case in found if case.kind == "decode"]) == 4
    assert sorted((case.sequences, case.context, case.new) for case in found if case.kind == "prefill") == [
        (1, 64, 64),
        (1, 4096, CHUNK),
        (1, 4096, 4096),
        (3, 64, 64),
        (3, 4096, CHUNK),
        (3, 4096, 4096),
    ]
    assert [(case.sequences, case.context) for case in found if case.kind == "write"] == [(1, 1), (3, 1)]
    assert chosen(["decode"], [FEW], [64], [1]) == [Case(FEW, 1, 64)]


def test_moves_are_copies_and_swaps_in_both_directions() -> None:
    assert {move.direction for move in moves(OPERATIONS, [FEW], False)} == {"copy", "out", "in"}
    assert {move.direction for move in moves(["swap"], [FEW], True)} == {"out", "in"}
    assert moves(["decode"], [FEW], True) == []


def test_codes_stand_beside_activations_of_16_bits_on_a_gpu() -> None:
    assert activations("uint8", "cuda") == activations("float8_e4m3fn", "cuda") == "bfloat16"
    assert activations("float32", "cuda") == "float32"
