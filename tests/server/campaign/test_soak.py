"""Minutes of mixed load with clients that leave and requests that fail: answers stay right, memory stays flat."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time

import pytest

NUM_CLIENTS = 6
MAX_GROWTH = 12 << 20
"""Bytes, over more than half of the time: a leak of a few kB a request is seen in ten minutes."""
PROMPTS = [f"soak {i} " * 5 for i in range(16)]
QUESTIONS = (
    {"stream": True, "max_tokens": 30},
    {"stream": True, "max_tokens": 400, "n": 2},
    {"max_tokens": 20, "logprobs": 2, "echo": True},
    {"max_tokens": 12, "structured_outputs": {"regex": "(a|b){4}c"}, "ignore_eos": False},
    {"max_tokens": 10, "temperature": -1},
    {"max_tokens": 300, "timeout": 0.02},
    {"max_tokens": 20, "stop": ["a", "e"], "n": 3, "temperature": 1},
)


class Client:
    """Asks one thing after another until the time is over, sometimes leaving before it has the answer."""

    def __init__(self, target, right, seed):
        self.target, self.right, self.draw, self.num_right = target, right, random.Random(seed), 0

    async def go_on(self, end):
        while time.monotonic() < end:
            prompt = self.draw.choice(PROMPTS)
            kind = self.draw.randrange(len(QUESTIONS) + 1)
            if kind == len(QUESTIONS):
                assert await asyncio.to_thread(self.target.ask, prompt) == self.right[prompt]
                self.num_right += 1
            else:
                await self.once({"temperature": 0, "ignore_eos": True, "prompt": prompt, **QUESTIONS[kind]})

    async def once(self, body):
        reader, writer = await asyncio.open_connection(*self.target.address)
        try:
            writer.write(self.target.request(body, headers=b"Connection: close\r\n"))
            most = self.draw.choice((0, 1, 3, 10**6, 10**6))
            for _ in itertools.takewhile(lambda i: i < most, itertools.count()):
                async with asyncio.timeout(60):
                    part = await reader.read(600)
                assert not part.startswith(b"HTTP/1.1 5"), part
                if not part:
                    break
        finally:
            writer.close()


def growth(sizes: list[int]) -> float:
    """From the second quarter, when everything has been done a few times, to the last one."""
    quarter = len(sizes) // 4
    assert quarter, "too short to tell"
    return statistics.median(sizes[-quarter:]) - statistics.median(sizes[quarter : 2 * quarter])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_memory_stays_flat_and_answers_stay_right_under_a_long_mixed_load(target, request):
    seconds = request.config.getoption("--soak")
    if not seconds:
        pytest.skip("a soak takes minutes: --soak 600")
    right = {prompt: target.ask(prompt) for prompt in PROMPTS}
    clients = [Client(target, right, seed) for seed in range(NUM_CLIENTS)]
    sizes: list[int] = []

    async def measure(end):
        while time.monotonic() < end:
            assert (await asyncio.to_thread(target.client.get, "/metrics")).status_code == 200
            sizes.append(target.resident)
            await asyncio.sleep(seconds / 200)

    async def main():
        end = time.monotonic() + seconds
        await asyncio.gather(measure(end), *(client.go_on(end) for client in clients))
        await target.at_rest()

    asyncio.run(main())
    assert min(client.num_right for client in clients) > 0
    print(f"{sum(client.num_right for client in clients)} compared; MiB: {[size >> 20 for size in sizes[::10]]}")
    assert growth(sizes) < MAX_GROWTH
