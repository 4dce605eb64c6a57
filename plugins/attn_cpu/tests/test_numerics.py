"""The kernels' own exp and tanh."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from paged_attn_cpu.microkernels import TILE, cap_row, exp_row


@numba.njit
def run_exp(source, target):
    exp_row(source.ctypes.data, target.ctypes.data, source.size // 16)


@numba.njit
def run_cap(row, softcap):
    cap_row(row.ctypes.data, softcap, np.float32(1.0))


def kernel_exp(values):
    source = np.zeros(-(-len(values) // 16) * 16, dtype=np.float32)
    source[: len(values)] = values
    target = np.empty_like(source)
    run_exp(source, target)
    return target[: len(values)]


def test_museum_51_exp_at_its_edges():
    got = kernel_exp([-np.inf, -104.0, -103.0, -87.5, -100.0, 0.0, -0.0, 1e-40, 88.0, 88.7, 89.0, np.inf])
    assert got[0] == 0.0
    assert got[1] <= 1.5e-45
    assert 0 < got[2] < 1e-44
    np.testing.assert_allclose(got[3:5], np.exp([-87.5, -100.0]), rtol=1e-5, atol=1.5e-45)
    assert got[5] == got[6] == got[7] == 1.0
    np.testing.assert_allclose(got[8:10], np.exp([88.0, 88.7]), rtol=1e-5)
    assert np.isinf(got[10:]).all()
    assert np.isnan(kernel_exp([np.nan])).all()


def test_exp_within_two_ulp():
    x = np.linspace(-87, 88, 100_003).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(kernel_exp(x) - exact) / np.spacing(exact.astype(np.float32))).max() < 2.0


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap_row(softcap):
    x = np.concatenate([np.linspace(-200, 200, TILE - 4), [0.0, -0.0, 1e30, -np.inf]]).astype(np.float32)
    row = x.copy()
    run_cap(row, np.float32(softcap))
    np.testing.assert_allclose(row, softcap * np.tanh(x.astype(np.float64) / softcap), atol=2e-7 * softcap, rtol=1e-6)
