"""Ten thousand requests on a pool too small for them, ended in every way: afterwards nothing is held (I0, law 8)."""

from __future__ import annotations

import gc
import itertools
import random
from collections import deque
from types import FunctionType, ModuleType

import pytest

from paged_core.api.params import SamplingParams
from paged_core.api.request import Group, Request, Sequence
from paged_core.testing.seams import PreemptNow

NUM_REQUESTS = 500
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
NAME = "request-"
PLAIN = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)

GROWS = {  # what may differ when nobody is left
    "_ledger.allocator.pool.cached": "the prefix cache",
    "_ledger.allocator.pool.following": "the prefix cache",
    "_ledger.allocator.pool.plain": "free blocks without cached content: fewer by what the prefix cache holds",
    "_ledger.allocator.pool.tree.roots": "the prefix cache",
    "_ledger.allocator.pool.tree._queue": "the prefix cache",
    "_ledger._ended_rows": "rows of which the executor hears with the next step",
    "_ledger.prefixes._sets": "rows that decoded together in the last step",
    "_executor._salts": "one per row, this test's executor",
    "_executor.inner._salts": "one per row, this test's executor",
    "_compiling._compiler._cache": "compiled grammars, up to a limit of bytes",
    "_compiling._compiler._children": "compiling processes, two at most",
    "_compiling._compiler._idle": "compiling processes, two at most",
    "_compiling._compiler._backends": "one per grammar library",
    "_emitter.num_finished": "a counter by reason",
    "_accounts._ttft": "a window of the last measurements",
    "_accounts._tpot": "a window of the last measurements",
}


def containers(engine):
    """Length by path of every container that the engine's parts hold, however deep."""
    found, seen, queue = {}, set(), deque([("", engine)])
    while queue:
        path, owner = queue.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        slots = [name for base in type(owner).__mro__ for name in getattr(base, "__slots__", ())]
        for name in {*getattr(owner, "__dict__", {}), *slots}:
            value = getattr(owner, name, None)
            where = f"{path}.{name}".lstrip(".")
            if isinstance(value, dict | list | set | deque):
                found[where] = len(value)
            elif type(value).__module__.startswith("paged_") and not isinstance(value, Group | Request | Sequence):
                queue.append((where, value))
    return found


def held(engine):
    """Requests, groups, sequences and request ids that are reachable from the engine: each by the types on the way."""
    found, seen, queue = [], {id(engine): (engine, "engine")}, deque([engine])
    while queue:
        item = queue.popleft()
        way = seen[id(item)][1]
        if isinstance(item, Group | Request | Sequence) or (isinstance(item, str) and item.startswith(NAME)):
            found.append(way)
        if isinstance(item, FunctionType):  # its globals are those of a module
            following = item.__closure__ or ()
        else:
            following = () if isinstance(item, dict) and "__builtins__" in item else gc.get_referents(item)
        for other in following:
            if id(other) not in seen and not isinstance(other, ModuleType | type):
                seen[id(other)] = other, f"{way} > {type(other).__name__}"
                queue.append(other)
    return found


def assert_nothing_is_held(engine, fresh):
    engine.check()
    blocks = engine.stats().blocks
    assert (blocks.free, blocks.host_free) == (blocks.total, blocks.host_total)
    assert (blocks.saved, blocks.shared, sum(blocks.ref_counts)) == (0, 0, 0)
    assert held(engine) == []
    now = containers(engine)
    assert fresh.keys() <= now.keys()
    grown = {path: now[path] for path in now if now[path] != fresh.get(path, 0) and path not in GROWS}
    assert grown == {}, "containers that are not as long as on a fresh engine"


class Traffic:
    """Random requests of every kind: `start` adds one, `disturb` ends or watches some."""

    unheard = itertools.count(1)

    def __init__(self, engine, seed):
        self.draw = random.Random(seed)
        self.engine, self.num_started = engine, 0
        self.ways = dict.fromkeys(
            ("abort", "deadline", "streamed", "forked", "salted", "cold", "form", "left compiling"), 0
        )

    def count(self, way, chance):
        """Whether it happens to this one; counted."""
        happens = self.draw.random() < chance
        self.ways[way] += happens
        return happens

    def start(self):
        draw = self.draw
        head = b"shared by many: " if draw.random() < 0.7 else bytes(draw.choices(b"xyz", k=8))
        prompt = [*head[: draw.randrange(1, len(head) + 1)], *draw.choices(b"ab", k=draw.randrange(1, 9))]
        routing = {}
        if self.count("deadline", 0.1):
            routing["deadline"] = self.engine._clock.now() + draw.random() * 0.02
        if self.count("salted", 0.3):
            routing["cache_salt"] = draw.choice("st")
        streamed = self.count("streamed", 0.3)
        self.engine.add_request(f"{NAME}{self.num_started}", prompt, self.params(), stream=streamed, **routing)
        self.num_started += 1

    def params(self):
        length, cold = self.draw.randrange(1, 10), self.count("cold", 0.05)
        more = {"max_tokens": length, "ignore_eos": True, "skip_reading_prefix_cache": cold}
        if self.count("form", 0.15):
            more |= {"structured_outputs": self.form(), "ignore_eos": False}
        if not self.count("forked", 0.4):
            return SamplingParams(temperature=0, **more)
        if self.draw.random() < 0.4:
            return SamplingParams(temperature=0, use_beam_search=True, beam_width=self.draw.randrange(2, 4), **more)
        return SamplingParams(n=self.draw.randrange(2, 4), temperature=1, seed=self.num_started, **more)

    def form(self):
        """Half of them are new to the compiler, whose time is its own: traffic is not the same twice."""
        number = next(self.unheard) if self.draw.random() < 0.5 else 0
        return {"regex": f"(on|off){{2,5}}{number}", "backend": self.draw.choice(["xgrammar", "llguidance"])}

    def disturb(self):
        ids = self.engine.unfinished_ids
        if ids and self.draw.random() < 0.1:
            self.leave(self.draw.choice(ids))
        for waiting in self.engine._compiling.ids:
            if self.draw.random() < 0.2:
                self.leave(waiting)

    def leave(self, victim):
        self.ways["left compiling"] += victim in self.engine._compiling
        self.ways["abort"] += len(self.engine.abort([victim, f"{NAME}unknown"]))


@pytest.mark.parametrize("alloc", ["alloc_cow", "alloc_radix"])
@pytest.mark.parametrize("preempt", ["preempt_recompute", "preempt_swap"])
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_leaves_anything_behind(logits, drain, alloc, preempt, seed, in_flight):
    draw = random.Random(-seed)
    engine = logits(
        wrap=lambda inner: PreemptNow(inner, lambda step, group: draw.random() < 0.01),
        alloc=alloc, preempt=preempt, num_blocks=24, num_host_blocks=12, token_budget=16, max_num_seqs=8,
        in_flight=in_flight,
    )  # fmt: skip
    fresh, traffic = containers(engine), Traffic(engine, seed)
    num_busy = 0
    while traffic.num_started < NUM_REQUESTS or engine.has_unfinished:
        while traffic.num_started < NUM_REQUESTS and len(engine.unfinished_ids) < 12 and draw.random() < 0.6:
            traffic.start()
        engine.step()
        traffic.disturb()
        if engine.stats().num_steps % 97 == 0 and engine.has_unfinished:
            engine.check()
            num_busy += len(held(engine)) > 0
    engine.add_request(f"{NAME}last", [1], PLAIN)  # with its steps the sampler hears who has left
    drain(engine)
    assert_nothing_is_held(engine, fresh)
    stats = engine.stats()
    assert num_busy > 0, "the search for what is held finds nothing even while requests run"
    assert all(traffic.ways.values()), traffic.ways
    assert stats.preemptions[preempt.removeprefix("preempt_")] > 0
    assert stats.blocks.prefix_hits > 0
    assert stats.blocks.num_copies > 0
    assert stats.blocks.num_evictions > 0
    assert stats.finished["abort"] > traffic.ways["abort"] > 0, "no deadline passed"


def test_what_is_left_behind_is_found(shadow, drain):
    engine = shadow()
    fresh = containers(engine)
    engine.add_request(f"{NAME}0", [65, 66, 67], PLAIN)
    drain(engine)
    assert_nothing_is_held(engine, fresh)
    engine._ledger.prompt_due[3] = 1
    with pytest.raises(AssertionError, match="prompt_due"):
        assert_nothing_is_held(engine, fresh)
    del engine._ledger.prompt_due[3]
    engine._scheduler.kept = f"{NAME}0"
    with pytest.raises(AssertionError):
        assert_nothing_is_held(engine, fresh)
