"""FcfsProvider: fitness and settings."""

from __future__ import annotations

import pytest
from paged_sched_fcfs import FcfsProvider, FcfsSettings
from pydantic import ValidationError

from paged_core.api.scheduler import SchedulerNeed


def test_it_fits_any_positive_limits():
    provider = FcfsProvider()
    assert provider.probe(SchedulerNeed(1, 1, 64, 4, 0)).ok
    fit = provider.probe(SchedulerNeed(0, 0, 64, 4, 0, required=frozenset({"priority"})))
    assert len(fit.reasons) == 3


@pytest.mark.parametrize("watermark", [-0.1, 1.0])
def test_a_watermark_outside_the_pool_is_refused(watermark):
    with pytest.raises(ValidationError):
        FcfsSettings(watermark=watermark)


def test_a_misspelt_setting_is_refused():
    with pytest.raises(ValidationError):
        FcfsSettings(watermrak=0.1)
