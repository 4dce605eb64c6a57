"""Ranks that die, hang, fail or run out of memory: one line that names them, within a bound, and nothing is left."""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paged_core import LLM, SamplingParams
from paged_core.engine.aio import AsyncLLM
from paged_core.errors import ConfigError, EngineDeadError, ModelFormatError, PluginLoadError
from paged_core.model.parallel.fleet import _WARM_STEPS
from paged_core.testing.tiny import write_tiny_llama

pytestmark = pytest.mark.slow

LONG = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
BOUND_S = 60


def under_load(llm, steps, requests=8):
    """Requests in the middle of their answers."""
    for i in range(requests):
        llm.engine.add_request(f"r{i}", f"request {i}", LONG)
    for _ in range(steps):
        llm.engine.step()


def go_on(llm):
    for _ in range(200):
        llm.engine.step()


def error_of(llm):
    """What the engine dies of; fails where it goes on, or takes longer than the bound."""
    begin = time.monotonic()
    with pytest.raises(EngineDeadError) as caught:
        go_on(llm)
    assert time.monotonic() - begin < BOUND_S
    return str(caught.value)


def assert_nothing_left(llm, pids, gone):
    """Already before anybody closes."""
    gone(pids)
    assert llm.engine.dead
    assert llm.engine._executor.processes() == ()
    with pytest.raises(EngineDeadError):
        llm.engine.add_request("late", "x", LONG)
    llm.close()
    llm.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_in_the_middle_of_requests_is_named(opened, gone, rank):
    before = len(os.listdir("/proc/self/fd"))
    llm = opened()
    pids = llm.engine._executor.processes()
    under_load(llm, 5)
    os.kill(pids[rank], signal.SIGKILL)
    text = error_of(llm)
    assert f"rank {rank} of 2 (process {pids[rank]}) was killed by SIGKILL" in text
    assert "because memory ran out" in text
    assert "in step " in text
    assert_nothing_left(llm, pids, gone)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the grammar compiler's and the like aside, no socket stays


def test_a_rank_killed_while_a_step_runs_is_the_cause_and_not_the_peer_that_lost_it(opened, gone):
    """Rank 0 waits for rank 1 in the middle of a layer, and fails of it before anybody looks at rank 1."""
    llm = opened()
    pids = llm.engine._executor.processes()
    under_load(llm, 5)
    os.kill(pids[1], signal.SIGSTOP)  # rank 0 now has to wait for it in the next step
    timer = threading.Timer(0.5, os.kill, (pids[1], signal.SIGKILL))
    timer.start()
    text = error_of(llm)
    timer.join()
    assert f"rank 1 of 2 (process {pids[1]}) was killed by SIGKILL" in text
    assert_nothing_left(llm, pids, gone)


def test_a_rank_that_dies_while_nothing_runs_is_noticed_without_a_request(opened, gone):
    llm = opened()
    pids = llm.engine._executor.processes()
    served = AsyncLLM(engine=llm.engine)
    os.kill(pids[0], signal.SIGKILL)
    deadline = time.monotonic() + BOUND_S
    while served.is_running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "rank 0 of 2" in str(served.failure)
    assert "was killed by SIGKILL" in str(served.failure)
    assert "between two steps" in str(served.failure)
    served.shutdown()
    gone(pids)


def test_a_rank_that_exits_is_named_with_its_code(opened, gone):
    llm = opened()
    pids = llm.engine._executor.processes()
    under_load(llm, 2)
    os.kill(pids[1], signal.SIGTERM)
    assert "was ended by SIGTERM" in error_of(llm)
    assert_nothing_left(llm, pids, gone)


def test_a_rank_that_hangs_is_named_when_its_time_is_up(opened, gone):
    llm = opened(limits={"step_timeout_s": 2.0})
    pids = llm.engine._executor.processes()
    under_load(llm, _WARM_STEPS + 2)
    os.kill(pids[1], signal.SIGSTOP)
    text = error_of(llm)
    assert f"rank 1 of 2 (process {pids[1]}) is stopped or stuck in step" in text
    assert "nothing came for 2 s" in text
    assert_nothing_left(llm, pids, gone)


def test_a_rank_that_runs_out_of_memory_says_so(opened, gone):
    llm = opened(max_num_batched_tokens=4096, max_num_seqs=64, num_blocks=1024)
    pids = llm.engine._executor.processes()
    under_load(llm, 2, requests=2)
    pages = int(Path(f"/proc/{pids[1]}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 18)
    resource.prlimit(pids[1], resource.RLIMIT_AS, (limit, limit))
    for i in range(40):
        llm.engine.add_request(f"long {i}", [i + 1] * 110, LONG)
    text = error_of(llm)
    assert f"rank 1 of 2 (process {pids[1]}) ran out of memory in step" in text
    assert "lower --kv-memory" in text
    assert_nothing_left(llm, pids, gone)


def test_a_pool_that_does_not_fit_is_an_error_of_the_settings(tiny, opened):
    with pytest.raises(ConfigError, match=r"ran out of memory while loading the model .*lower --kv-memory"):
        opened(num_blocks=2**22, block_size=256)


def test_a_damaged_model_is_told_once_and_as_what_it_is(opened, tmp_path, gone):
    folder = write_tiny_llama(tmp_path / "damaged")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelFormatError) as caught:
        opened(str(folder))
    assert len(str(caught.value).splitlines()) == 1


MINE = """
from paged_attn_torch import TorchAttentionProvider
from paged_core import hookimpl


class Mine(TorchAttentionProvider):
    name = "attn_mine"


@hookimpl
def paged_attention():
    return Mine()
"""


def test_a_worker_without_a_plugin_says_which_and_where(tiny, tmp_path):
    """The engine's registry was loaded from a folder that workers do not look into."""
    from paged_core.engine.assemble import assemble, load_settings
    from paged_core.plugins import load_plugins

    (tmp_path / "mine_attention.py").write_text(MINE)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paged_core]\nattn_mine = mine_attention\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        plugins = load_plugins(path=[str(tmp_path), *sys.path])
    settings = load_settings(model=tiny, attn="attn_mine", tensor_parallel_size=2, num_blocks=64)
    with pytest.raises(PluginLoadError, match="lacks the plugin attn_mine") as caught:
        assemble(settings, plugins)
    assert "worker process" in str(caught.value)
    assert os.uname().nodename in str(caught.value)


OWNER = """
import json, sys, time
from paged_core import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, num_blocks=128, attn="attn_torch", max_num_seqs=8, threads=1)
print(json.dumps(llm.engine._executor.processes()), flush=True)
params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
while True:
    llm.generate([f"{i}" for i in range(8)], params, use_tqdm=False)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_leave_with_the_engine_however_it_ends(tiny, gone, how):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tiny], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        time.sleep(0.3)
        owner.send_signal(how)
        owner.wait(BOUND_S)
        gone(pids, 10)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_closing_in_the_middle_of_a_step_is_nothing_that_workers_complain_of(opened, gone, capfd):
    llm = opened()
    pids = llm.engine._executor.processes()
    under_load(llm, 2)
    os.kill(pids[0], signal.SIGSTOP)  # its answer comes when nobody takes it any more

    def interrupted(_):
        raise KeyboardInterrupt

    llm.engine._executor.collect = interrupted
    with pytest.raises(KeyboardInterrupt):
        llm.engine.step()
    timer = threading.Timer(0.3, os.kill, (pids[0], signal.SIGCONT))
    timer.start()
    llm.close()
    timer.join()
    gone(pids)
    assert "Traceback" not in capfd.readouterr().err


def test_workers_leave_with_a_model_that_nobody_closed(tiny, gone):
    llm = LLM(tiny, tensor_parallel_size=2, num_blocks=128, attn="attn_torch", max_num_seqs=8, threads=1)
    pids = llm.engine._executor.processes()
    del llm
    gc.collect()
    gone(pids)


def test_a_rank_that_fails_in_a_step_is_told_with_its_traceback(opened, gone):
    """A plan that only workers find to be wrong: draws from rows that there are not."""
    llm = opened()
    pids = llm.engine._executor.processes()
    under_load(llm, 2)
    submit = llm.engine._executor.submit

    def spoiled(plan):
        plan.sample_index = plan.sample_index + 10**6
        return submit(plan)

    llm.engine._executor.submit = spoiled
    with pytest.raises(EngineDeadError) as caught:
        llm.engine.step()
    assert re.match(r"(all ranks|rank [01] of 2 \(process \d+\)) failed in step \d+: ", str(caught.value))
    assert "Traceback" in str(caught.value.__cause__)
    assert_nothing_left(llm, pids, gone)
