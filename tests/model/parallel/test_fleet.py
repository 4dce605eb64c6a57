"""Fleet: whose fault it is, told in one line, by what arrives from workers that are not there."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from paged_core.api.batch import StepResult
from paged_core.errors import ConfigError, EngineDeadError, ModelFormatError, PagedError, PluginLoadError
from paged_core.model.parallel import fleet as fleet_module
from paged_core.model.parallel import orders as orders_module
from paged_core.model.parallel.executor import least
from paged_core.model.parallel.fleet import Fleet, Limits
from paged_core.model.parallel.message import ANSWER, pack, unpack, write_result
from paged_core.model.parallel.orders import Failure, Ready, Report, Said
from paged_core.model.parallel.transport import Arrival
from paged_core.model.parallel.worker import Place

LIMITS = Limits(start_s=0.2, step_s=0.1)
GONE = None


def failure(error):
    """As a worker tells of it."""
    try:
        raise error
    except Exception as caught:
        return pack(ANSWER, Failure.of(caught))


def result(step):
    return write_result(StepResult(step, np.array([[5]], np.int32), np.ones(1, np.int32), 0.1))


ECHO = failure(EngineDeadError("rank 0 of 2 lost the others of its group: connection closed"))
READY = pack(ANSWER, Ready())


class Scripted:
    """A transport of two ranks: `arrivals` come one list a call of `wait`, then nothing does."""

    size, host = 2, "here"

    def __init__(self, *arrivals, places=None):
        self.arrivals = [[Arrival(rank, message) for rank, message in each] for each in arrivals]
        self.where = places or {}
        self.posted, self.closed = [], []
        self.refuses = False

    def post(self, message, limit_s):
        if self.refuses:
            raise TimeoutError
        self.posted.append(message)

    def wait(self, limit_s):
        return self.arrivals.pop(0) if self.arrivals else []

    def name(self, rank):
        return f"rank {rank} of 2 (there)"

    def end(self, rank):
        return "fell over"

    def places(self, limit_s):
        return self.where

    def processes(self):
        return ()

    def close(self, grace_s):
        self.closed.append(grace_s)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(fleet_module, "_SETTLE_S", 0.05)
    monkeypatch.setattr(fleet_module, "_WARM_STEPS", 0)


def error_of(transport, step=True):
    """What a step, or the start, ends in; twice the same, and the workers are ended."""
    fleet = Fleet(transport, LIMITS)
    with pytest.raises(PagedError) as caught:
        fleet.result(3) if step else fleet.ask("order", "while starting")
    assert transport.closed == [0.0]
    with pytest.raises(EngineDeadError) as again:
        fleet.step(b"", 4)
    assert str(again.value) == str(caught.value)
    return caught.value


def test_answers_are_gathered_by_rank_whatever_their_order():
    transport = Scripted([(1, pack(ANSWER, "one"))], [(0, pack(ANSWER, "zero"))])
    assert Fleet(transport, LIMITS).ask({"an": "order"}, "while starting") == ["zero", "one"]
    assert unpack(transport.posted[0]) == {"an": "order"}


@pytest.mark.parametrize(
    "arrivals", [[[(0, result(3))], [(1, READY)], [(0, READY)]], [[(0, result(3)), (0, READY)], [(1, READY)]]]
)
def test_the_result_of_a_step_that_was_interrupted_is_no_answer(arrivals):
    assert Fleet(Scripted(*arrivals), LIMITS).ask("order", "while telling times") == [Ready(), Ready()]


def test_the_result_is_rank_zeros():
    fleet = Fleet(Scripted([], [(0, result(3))]), LIMITS)
    fleet.step(b"step", 3)
    assert fleet.result(3).tokens.tolist() == [[5]]


@pytest.mark.parametrize("news", [[[(1, GONE)]], [[(0, ECHO)], [(1, GONE)]], [[(0, ECHO), (1, GONE)]]])
def test_a_rank_that_is_gone_is_the_cause_and_not_the_one_that_lost_it(news):
    assert str(error_of(Scripted(*news))) == "rank 1 of 2 (there) fell over in step 3"


def test_an_exception_of_one_rank_is_told_with_its_traceback():
    error = error_of(Scripted([(0, ECHO)], [(1, failure(TypeError("no such thing\nmore")))]))
    assert str(error) == "rank 1 of 2 (there) failed in step 3: TypeError: no such thing"
    assert "raise error" in str(error.__cause__)


def test_only_echoes_are_better_than_silence():
    assert "lost the others" in str(error_of(Scripted([(0, ECHO)])))


@pytest.mark.parametrize(
    "cause", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_memory_that_ran_out_is_said_so(cause):
    lost = EngineDeadError("rank 1 of 2 lost the others")
    lost.__cause__ = cause
    for error in (cause, lost):
        told = error_of(Scripted([(1, failure(error))]))
        assert str(told).startswith("rank 1 of 2 (there) ran out of memory in step 3")
        assert "lower --kv-memory" in str(told)
    assert isinstance(error_of(Scripted([(0, failure(cause))]), step=False), ConfigError)


def test_an_error_where_the_system_gives_no_more_memory_is_one_of_memory(monkeypatch):
    def none_left(*_):
        raise OSError(12, "Cannot allocate memory")

    error = failure(RuntimeError("could not create a primitive"))
    assert "failed in step 3: RuntimeError: could not create" in str(error_of(Scripted([(1, error)])))
    monkeypatch.setattr(orders_module.mmap, "mmap", none_left)
    error = failure(RuntimeError("could not create a primitive"))
    assert "ran out of memory in step 3 (RuntimeError: could not create" in str(error_of(Scripted([(1, error)])))


def test_what_all_ranks_say_at_start_up_is_said_once_and_keeps_its_kind():
    same = failure(ModelFormatError("model.safetensors is cut off"))
    error = error_of(Scripted([(0, same)], [(1, same)]), step=False)
    assert type(error) is ModelFormatError
    assert str(error) == "model.safetensors is cut off"


def test_what_one_rank_says_at_start_up_is_told_with_its_name():
    error = error_of(Scripted([(0, READY)], [(1, failure(PluginLoadError("lacks attn_x")))]), step=False)
    assert type(error) is PluginLoadError
    assert str(error) == "rank 1 of 2 (there): lacks attn_x"


PLACES = {
    "one is silent": ({0: Place(3, 9)}, "rank 1 of 2 (there) is stopped"),
    "one is behind": ({0: Place(3, 9), 1: Place(3, 8)}, "rank 1 of 2 (there) is stopped"),
    "both are silent": ({}, "rank 0 of 2 (there) and rank 1 of 2 (there) are stopped"),
}


@pytest.mark.parametrize("case", PLACES)
def test_who_hangs_is_told_when_time_is_up(case):
    places, told = PLACES[case]
    error = error_of(Scripted(places=places))
    assert str(error).startswith(told)
    assert "or stuck in step 3: nothing came for 0.1 s" in str(error)


def test_the_time_that_was_up_is_that_of_first_steps_where_it_was_one(monkeypatch):
    monkeypatch.setattr(fleet_module, "_WARM_STEPS", 1)
    assert "stuck in step 3: nothing came for 0.2 s" in str(error_of(Scripted()))


def test_a_rank_that_takes_no_message_hangs_too():
    transport = Scripted(places={0: Place()})
    transport.refuses = True
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 .* is stopped or stuck in step 4"):
        Fleet(transport, LIMITS).step(b"", 4)


def test_after_an_interrupted_message_nothing_goes_on():
    transport = Scripted()
    transport.post = lambda message, limit_s: (_ for _ in ()).throw(KeyboardInterrupt)
    fleet = Fleet(transport, LIMITS)
    with pytest.raises(KeyboardInterrupt):
        fleet.step(b"", 4)
    with pytest.raises(EngineDeadError, match="interrupted in step 4"):
        fleet.result(4)


def test_logs_of_ranks_reach_the_engines_logs_once(caplog):
    def said(text):
        return pack(ANSWER, Said("paged_core.model", logging.WARNING, text))

    transport = Scripted([(0, said("slow")), (1, said("slow")), (1, said("cold"))], [(0, READY), (1, READY)])
    Fleet(transport, LIMITS).ask("order", "while starting")
    assert [record.getMessage() for record in caplog.records] == ["slow", "rank 1: cold"]


def test_a_rank_that_leaves_while_nothing_runs_is_found_by_looking():
    transport = Scripted([(0, pack(ANSWER, Said("paged_core.model", logging.DEBUG, "idle")))], [(1, GONE)])
    fleet = Fleet(transport, LIMITS)
    fleet.look()
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 \(there\) fell over between two steps"):
        fleet.look()
    assert transport.closed == [0.0]


def test_closing_is_gentle_and_final():
    transport = Scripted()
    fleet = Fleet(transport, LIMITS)
    fleet.close()
    assert transport.closed == [LIMITS.grace_s]
    with pytest.raises(EngineDeadError, match="closed"):
        fleet.result(1)


def test_the_rank_with_the_least_room_counts():
    fits = least([Report(10, 5, 100, port=7), Report(8, 6, 100)])
    assert (fits.num_blocks, fits.num_host_blocks, fits.block_bytes, fits.num_ranks) == (8, 5, 200, 2)
