"""Other processes on the cores are noticed by the time that steps do not get, and said once."""

from __future__ import annotations

import logging

import pytest

from paged_core.model.pressure import CpuPressure


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, "paged_core.news")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "paged_core.news"]


def test_a_machine_of_its_own_is_no_news(told):
    pressure = CpuPressure(2)
    for _ in range(1000):
        pressure.add(0.1, 0.095)
    assert told() == []


def test_shared_cores_are_said_once_with_what_helps(told):
    pressure = CpuPressure(2)
    for _ in range(1000):
        pressure.add(0.1, 0.04)
    (line,) = told()
    assert "40 %" in line
    assert "--threads=1" in line


def test_one_thread_is_not_advised_to_be_one(told):
    pressure = CpuPressure(1)
    for _ in range(60):
        pressure.add(0.1, 0.01)
    assert "--threads" not in told()[0]


def test_a_short_disturbance_is_no_news(told):
    pressure = CpuPressure(2)
    for step in range(1000):
        pressure.add(0.1, 0.01 if step % 10 == 0 else 0.1)
    assert told() == []
