"""Compiling off the loop: a cache, two processes, limits; a grammar that explodes or crashes ends alone."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError

import pytest

from paged_core.errors import PagedError
from paged_core.structured.child import CompileLimits
from paged_core.structured.spec import GrammarError, GrammarSpec

DEEP = '{"type":"array","items":' * 5000 + "{}" + "}" * 5000  # crashes or stalls xgrammar 0.2.9
WIDE = json.dumps({"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(3000)}})


def regex(text, backend="llguidance"):
    return GrammarSpec(backend, "regex", text, False)


def test_equal_specs_share_one_compilation_and_failures_are_not_kept(compiler_of):
    compiler = compiler_of(CompileLimits())
    first = compiler.submit(regex("a+"))
    assert compiler.submit(regex("a+")) is first
    grammar = first.result()
    assert compiler.submit(regex("a+")).result() is grammar
    assert compiler.num_compiled == 1
    bad = compiler.submit(regex("(?=a)"))
    with pytest.raises(GrammarError, match="look-around"):
        bad.result()
    assert compiler.submit(regex("(?=a)")) is not bad


def test_the_cache_forgets_what_was_not_asked_for_longest(compiler_of):
    one = compiler_of(CompileLimits()).submit(regex("a")).result().num_bytes
    compiler = compiler_of(CompileLimits(cache_bytes=3 * one))
    for text in ("a", "b", "c"):
        compiler.submit(regex(text)).result()
    kept = compiler.submit(regex("a"))
    compiler.submit(regex("d")).result()
    compiler.submit(regex("d"))
    assert compiler.num_cached == 3
    assert compiler.submit(regex("a")) is kept
    assert not compiler.submit(regex("b")).done() or compiler.num_compiled > 4


@pytest.mark.parametrize("text", [DEEP, WIDE], ids=["deep", "wide"])
def test_a_grammar_that_explodes_is_ended_and_the_next_one_compiles(compiler_of, text):
    compiler = compiler_of(CompileLimits(seconds=2.0))
    neighbour = compiler.submit(regex("[ab]c", "xgrammar"))
    exploding = compiler.submit(GrammarSpec("xgrammar", "json", text, False))
    assert neighbour.result().num_bytes > 0
    with pytest.raises(GrammarError, match=r"takes more than|crashed"):
        exploding.result()
    assert compiler.submit(regex("[ab]d", "xgrammar")).result().num_bytes > 0


def test_memory_is_limited(compiler_of):
    compiler = compiler_of(CompileLimits(seconds=60.0, memory_bytes=64 << 20))
    wish = GrammarSpec("xgrammar", "json", json.dumps({"enum": [f"value{i}" for i in range(60_000)]}), False)
    with pytest.raises(GrammarError, match="more than 64 MiB"):
        compiler.submit(wish).result()


def test_a_killed_child_takes_no_other_job_even_while_it_dies(compiler_of):
    compiler = compiler_of(CompileLimits())
    child = compiler._take()
    child.kill()
    assert not child.alive
    compiler._put_back(child)
    assert compiler._take() is not child


def test_a_compiled_grammar_may_not_fill_the_cache(compiler_of):
    compiler = compiler_of(CompileLimits(cache_bytes=1 << 20))
    wish = GrammarSpec("xgrammar", "json", json.dumps({"enum": [f"value{i}" for i in range(5000)]}), False)
    with pytest.raises(GrammarError, match="are allowed"):
        compiler.submit(wish).result()


def test_closing_ends_what_still_compiles(compiler_of):
    compiler = compiler_of(CompileLimits(seconds=300.0))
    futures = [compiler.submit(GrammarSpec("xgrammar", "json", WIDE[:-1] + " " * i + "}", False)) for i in range(3)]
    compiler.close()
    compiler.close()
    for future in futures:
        with pytest.raises((PagedError, GrammarError, CancelledError)):
            future.result(timeout=0)
    assert compiler.num_cached == 0


def test_a_library_that_cannot_be_loaded_is_not_the_grammars_fault(compiler_of):
    wish = GrammarSpec("xgrammar", "regex", "a", False)
    compiler = compiler_of(CompileLimits())
    child = compiler._take()
    child.kill()
    with pytest.raises(PagedError, match="could not load xgrammar"):
        child.compile(wish)
    compiler._put_back(child)
    assert compiler.submit(wish).result().num_bytes > 0
