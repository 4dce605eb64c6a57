"""`paged-core serve --replicas 2` as its users have it: clients that come and go, a replica that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.conftest import descendants, lives, running_command, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.conftest import Command

pytestmark = pytest.mark.slow
NUM_CLIENTS = 50
LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0, "stream": True}
BOUND_S = 120


@pytest.fixture(scope="module")
def command(ray: None, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    shape = ["--num-blocks=2048", "--max-num-seqs=16", "--dtype=float32", "--threads=1", "--host-memory=0"]
    errors = tmp_path_factory.mktemp("serve") / "stderr"
    with running_command(errors, model, "--replicas=2", "--served-model-name=tiny", *shape) as running:
        yield running


@dataclass
class Stream:
    """What one client has seen."""

    prompt: str
    texts: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    has_begun: bool = False
    is_done: bool = False


async def read(session: Any, url: str, prompt: str) -> Stream:
    seen = Stream(prompt)
    async with session.post(url + "/v1/completions", json={"prompt": prompt, **LONG}) as response:
        if response.status == 503:  # its first words were on their way when they were overtaken by the news
            seen.error = (await response.json())["error"]
            return seen
        assert response.status == 200, await response.text()
        seen.has_begun = True
        async for line in response.content:
            text = line.decode().strip().removeprefix("data: ")
            if text == "[DONE]":
                seen.is_done = True
            elif text and not text.startswith(":"):
                event = json.loads(text)
                seen.error = event.get("error")
                seen.texts += [choice["text"] for choice in event.get("choices", [])]
    return seen


def test_answers_are_those_of_one_engine_and_every_replica_has_its_metrics(command, model):
    from openai import OpenAI

    client = OpenAI(base_url=command.url + "/v1", api_key="none")
    assert [card.id for card in client.models.list()] == ["tiny"]
    whole = client.completions.create(model="tiny", prompt=["one", "two"], max_tokens=8, temperature=0, n=1)
    streamed = {0: "", 1: ""}
    how = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    for chunk in client.completions.create(prompt=["one", "two"], stream=True, **how):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert {choice.index: choice.text for choice in whole.choices} == streamed
    from paged_core import LLM, SamplingParams

    with LLM(model, num_blocks=64, max_num_seqs=4, dtype="float32", threads=1) as llm:
        params = SamplingParams(max_tokens=8, temperature=0)
        alone = [output.outputs[0].text for output in llm.generate(["one", "two"], params, use_tqdm=False)]
    assert alone == [streamed[0], streamed[1]]
    assert len(command.samples("num_requests_running")) == 2
    assert sum(command.samples("request_success_total").values()) == 4
    assert json.loads(command.get("/health"))["status"] == "ok"


def test_what_an_engine_refuses_is_the_caller_s_400(command):
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as refused:
        command.complete(allowed_token_ids=[10**9])
    assert refused.value.code == 400
    assert json.load(refused.value)["error"]["param"] == "allowed_token_ids"


def test_equal_beginnings_meet_in_one_cache(command):
    before = command.samples("prefix_cache_hits_total")
    for i in range(6):
        command.complete(prompt="the same long beginning of every prompt, more than a block of it" * 3 + str(i))
    after = command.samples("prefix_cache_hits_total")
    gained = sorted(after[name] - before[name] for name in after)
    assert gained[0] == 0 < gained[1], gained


def test_a_client_that_leaves_frees_the_blocks_of_its_replica(command):
    import aiohttp

    async def leave() -> None:
        async with aiohttp.ClientSession() as session:
            body = {"prompt": "soon gone", **LONG, "n": 3}
            async with session.post(command.url + "/v1/completions", json=body) as response:
                await response.content.readline()

    asyncio.run(leave())
    wait_until(lambda: sum(command.samples("num_requests_running").values()) == 0, "the request is aborted", 30)
    assert sum(command.samples("kv_cache_usage_perc").values()) == 0.0


def test_a_killed_replica_costs_its_streams_and_nobody_else(command):
    """Who has seen nothing is answered by the other one; who has seen something gets one error event; nobody waits
    for ever; Ray brings a new replica."""
    import aiohttp

    victim = command.replicas()[0]

    async def main() -> list[Stream]:
        limits = {"connector": aiohttp.TCPConnector(limit=0), "timeout": aiohttp.ClientTimeout(total=BOUND_S)}
        async with aiohttp.ClientSession(**limits) as session:
            tasks = [asyncio.create_task(read(session, command.url, f"prompt {i % 5}")) for i in range(NUM_CLIENTS)]
            await asyncio.to_thread(
                wait_until, lambda: min(command.samples("num_requests_running").values()) >= 8, "both are busy"
            )
            os.kill(victim, signal.SIGKILL)
            return await asyncio.gather(*tasks)

    streams = asyncio.run(main())
    assert len(streams) == NUM_CLIENTS
    done = [stream for stream in streams if stream.is_done]
    failed = [stream for stream in streams if not stream.is_done]
    assert 1 <= len(failed) <= 16, "only those that ran can have begun, and 16 run at a time"
    for stream in failed:
        assert stream.error is not None
        assert stream.error["code"] == "replica_died"
        assert any(stream.texts) or not stream.has_begun, (
            "it had seen nothing, and could have been answered by another replica"
        )
    for prompt in {stream.prompt for stream in done}:
        texts = {"".join(stream.texts) for stream in done if stream.prompt == prompt}
        assert len(texts) == 1, "an answer that was begun anew differs from one that was not"
    assert command.complete()["choices"][0]["text"]
    wait_until(lambda: len(command.replicas()) == 2, "a new replica has started")
    wait_until(lambda: len(command.samples("num_requests_running")) == 2, "it answers")
    assert not lives(victim)
    assert command.errors.read_text().count(" died (") == 1


def test_sigterm_lets_streams_finish_and_leaves_no_process(command):
    """The last test with this command: it ends."""
    import aiohttp

    async def main() -> Stream:
        async with aiohttp.ClientSession() as session:
            task = asyncio.create_task(read(session, command.url, "to the end"))
            await asyncio.to_thread(
                wait_until, lambda: sum(command.samples("num_requests_running").values()) == 1, "it runs"
            )
            command.process.send_signal(signal.SIGTERM)
            return await task

    children = descendants(command.process.pid)
    assert len(children) > 4
    assert asyncio.run(main()).is_done
    assert command.process.wait(60) == 0
    wait_until(lambda: not any(map(lives, children)), "all processes of Ray are gone")
