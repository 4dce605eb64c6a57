from __future__ import annotations

import resource

from paged_core.server.descriptors import take_descriptors


def test_a_low_limit_of_open_files_is_raised_as_far_as_it_may_be(monkeypatch):
    limits = {"now": (256, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda what, both: limits.update(now=both))
    take_descriptors(10_240)
    assert limits["now"] == (4096, 4096)
    limits["now"] = (256, resource.RLIM_INFINITY)
    take_descriptors(10_240)
    assert limits["now"] == (10_240, resource.RLIM_INFINITY)
    limits["now"] = (50_000, 60_000)
    take_descriptors(10_240)
    assert limits["now"] == (50_000, 60_000)
