"""Ranks as actors on two nodes: the same tokens, and an end with one line when one of them is lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from paged_core.api.params import SamplingParams
from paged_core.engine.assemble import assemble, load_settings
from paged_core.errors import ConfigError, EngineDeadError, PluginUnfitError
from paged_core.model.parallel.message import ORDER, pack, unpack

pytestmark = pytest.mark.slow
PROMPTS = ["a", "the other one", "in the beginning there was nothing and"]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
BOUND_S = 60.0


def opened(folder, ranks=2, **ray_settings):
    """An engine; on several ranks they are actors, each on a node of its own unless told otherwise."""
    table = {"strategy": "STRICT_SPREAD", "cpus_per_rank": 1, **ray_settings}
    return assemble(
        load_settings(
            model=str(folder),
            executor="exec_ray" if ranks > 1 else "exec_local",
            tensor_parallel_size=ranks,
            dtype="float32",
            attn="attn_torch",
            num_blocks=64,
            max_num_seqs=4,
            host_memory="1MiB",
            threads=1,
            seed=1,
            plugins={"exec_ray": table},
        )
    )


def answers(engine):
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, GREEDY)
    found = {}
    while engine.has_unfinished:
        found |= {each.request_id: tuple(each.outputs[0].token_ids) for each in engine.step() if each.finished}
    return [found[str(i)] for i in range(len(PROMPTS))]


def actors(assembly):
    """The transport of the engine's executor."""
    return assembly.engine._executor._transport


def free_processors():
    import ray

    return ray.available_resources().get("CPU", 0)


@pytest.fixture(scope="module")
def expected(folder):
    assembly = opened(folder, ranks=1)
    yield answers(assembly.engine)
    assembly.close()


def gone_within_bound(processes):
    """Whether all have ended, as soon as they have."""
    deadline = time.monotonic() + BOUND_S
    while any(os.path.exists(f"/proc/{process}") for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_ranks_on_two_nodes_answer_what_one_process_does_and_leave_nothing(cluster, folder, expected):
    import ray

    before = free_processors()
    assembly = opened(folder)
    processes = actors(assembly).processes()
    assert len(processes) == 2
    table = ray.util.placement_group_table(actors(assembly)._group)
    assert len(set(table["bundles_to_node_id"].values())) == 2
    assert answers(assembly.engine) == expected
    assembly.engine.check()
    assembly.close()
    assembly.close()
    assert gone_within_bound(processes)
    assert wait_until(lambda: free_processors() == before)
    assert ray.is_initialized(), "a cluster that was there before belongs to others"


def stepped(engine):
    """Steps until something happens."""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        engine.step()


def wait_until(holds):
    deadline = time.monotonic() + BOUND_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


def test_a_rank_that_is_killed_in_a_step_ends_the_engine_with_its_name(cluster, folder):
    assembly = opened(folder)
    processes = actors(assembly).processes()
    assembly.engine.add_request("x", PROMPTS[0], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    assembly.engine.step()
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=rf"rank 1 of 2 \(process {processes[1]} on .*\) was lost: "):
        stepped(assembly.engine)
    assert gone_within_bound(processes)
    assembly.close()


def test_a_rank_that_stops_is_found_within_the_limit(cluster, folder):
    """The steps before are the ones with the long limit, in which kernels may be compiled."""
    assembly = opened(folder, start_timeout_s=120, step_timeout_s=3)
    processes = actors(assembly).processes()
    assembly.engine.add_request("x", PROMPTS[0], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    for _ in range(20):
        assembly.engine.step()
    os.kill(processes[1], signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 .* is stopped or stuck in step"):
        stepped(assembly.engine)
    assert gone_within_bound(processes)
    assembly.close()


def test_a_cluster_without_room_says_so(cluster, folder):
    with pytest.raises(ConfigError, match=r"no room for 4 ranks of 1 CPU \(STRICT_SPREAD\).* on 2 nodes"):
        opened(folder, ranks=4, place_timeout_s=2)


def test_a_start_that_is_interrupted_gives_the_room_back(cluster, folder, monkeypatch):
    import ray

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    known = set(ray.util.placement_group_table())
    with monkeypatch.context() as patch:
        patch.setattr(ray, "get", interrupt)
        with pytest.raises(KeyboardInterrupt):
            opened(folder)
    (group,) = set(ray.util.placement_group_table()) - known
    assert wait_until(lambda: ray.util.placement_group_table()[group]["state"] == "REMOVED")


def test_a_node_may_have_the_model_elsewhere(cluster, folder, tmp_path, expected):
    """The engine's own folder has no weights left: it never loads them."""
    there = tmp_path / "there"
    shutil.copytree(folder, there)
    here = tmp_path / "here"
    shutil.copytree(folder, here)
    for weights in here.glob("*.safetensors"):
        weights.unlink()
    assembly = opened(here, model_paths={socket.gethostname(): str(there)})
    assert answers(assembly.engine) == expected
    assembly.close()
    with pytest.raises(PluginUnfitError, match="nowhere' is neither a folder"):
        opened(folder, model_paths={socket.gethostname(): str(tmp_path / "nowhere")})


def test_long_messages_reach_every_rank_as_short_ones_do(cluster, folder):
    """Ray carries long arguments out of line. No worker knows an order that is a text, and each says so."""
    assembly = opened(folder)
    transport = actors(assembly)
    told = {0: [], 1: []}
    for length in (1, 1 << 20, 1):
        transport.post(pack(ORDER, length * "x"), BOUND_S)
    while sum(map(len, told.values())) < 6:
        for rank, message in transport.wait(BOUND_S):
            told[rank].append(unpack(message).kind)
    assert told == {0: ["KeyError"] * 3, 1: ["KeyError"] * 3}
    assembly.close()


def test_an_engine_in_a_thread_of_a_program_may_begin_ray_and_outlives_others(folder):
    """Ray sets handlers of signals, which only a main thread may; in its own process, for Ray is one a process. Plugins
    are shut down with every engine, also with one that never used Ray."""
    code = f"""
import threading, signal
from paged_core import LLM, SamplingParams
before = signal.getsignal(signal.SIGTERM)
found = []
def work():
    llm = LLM(model={str(folder)!r}, executor="ray", tensor_parallel_size=2, dtype="float32", attn="attn_torch",
              num_blocks=32, threads=1)
    LLM(model={str(folder)!r}, executor="local", dtype="float32", attn="attn_torch", num_blocks=32, threads=1).close()
    found.append(llm.generate(["a"], SamplingParams(max_tokens=3, temperature=0))[0].outputs[0].token_ids)
    llm.close()
thread = threading.Thread(target=work)
thread.start(); thread.join()
import ray
assert not ray.is_initialized()
assert signal.getsignal(signal.SIGTERM) is before
print(len(found[0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "3"
