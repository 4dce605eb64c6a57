"""X05: a prefix cache that is on and can never hit is told when the engine starts, and is not called on."""

from __future__ import annotations

import logging

import pytest

from paged_core.engine.assemble import caches_prefixes
from paged_core.engine.llm import LLM
from paged_core.testing.tiny import write_tiny_llama


class Plain:
    """A provider of an allocator."""

    name = "alloc_plain"

    def __init__(self, *capabilities):
        self.capabilities = frozenset(capabilities)


@pytest.mark.parametrize(
    ("asked", "able", "told"), [(True, True, False), (True, False, True), (False, True, False), (False, False, False)]
)
def test_x05_an_allocator_without_a_cache_is_told_where_one_was_wanted(caplog, asked, able, told):
    caplog.set_level(logging.INFO, "paged_core.news")
    allocator = Plain("prefix_cache") if able else Plain("fork")
    assert caches_prefixes(asked, allocator) == (asked and able)
    assert [record.getMessage() for record in caplog.records] == (
        ["prefix cache: off, because alloc_plain has none"] if told else []
    )


def test_x05_what_the_engine_says_of_itself_is_what_its_allocator_can(tmp_path, monkeypatch):
    from paged_alloc_cow import CowProvider

    model = str(write_tiny_llama(tmp_path / "tiny"))
    settings = {"dtype": "float32", "num_blocks": 16, "max_num_seqs": 2, "host_memory": "0"}
    monkeypatch.setattr(CowProvider, "capabilities", CowProvider.capabilities - {"prefix_cache", "partial_hits"})
    llm = LLM(model, **settings)
    assert not llm.engine.facts.prefix_cache
    assert any("prefix cache off" in line for line in llm.engine.facts.describe())
