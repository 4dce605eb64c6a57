"""Hundreds of clients at once, most of which leave in the middle, some by being killed."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import subprocess
import sys

NUM_CLIENTS = 200
NUM_PROMPTS = 8
LONG = {"temperature": 0, "ignore_eos": True, "stream": True}
CLIENT = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sock.sendall(sys.stdin.buffer.read())
while part := sock.recv(4096):
    print(len(part), flush=True)
"""


def joined(answer: bytes) -> str:
    """The text of a stream that has come to its end."""
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    events = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]", events[-1:]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


async def leaves(target, request, way, num_reads):
    """A client that reads so often and then goes away. `way`: how."""
    reader, writer = await asyncio.open_connection(*target.address)
    try:
        writer.write(request[: len(request) // 2] if way == "in its request" else request)
        await writer.drain()
        if way != "in its request":
            for _ in range(num_reads):
                await reader.read(512)
    finally:
        if way == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()


async def stays(target, request):
    reader, writer = await asyncio.open_connection(*target.address)
    writer.write(request)
    answer = await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    return joined(answer)


def test_of_two_hundred_streams_those_that_stay_are_right_and_those_that_leave_leave_nothing(target):
    prompts = [f"prompt {i} " * 4 for i in range(NUM_PROMPTS)]
    right = [target.ask(prompt, 30) for prompt in prompts]
    draw = random.Random(7)
    ways = ("reset", "close", "in its request")

    async def main():
        staying, leaving = {}, []
        for i in range(NUM_CLIENTS):
            which = draw.randrange(NUM_PROMPTS)
            if i % 5 == 0:
                request = target.request({**LONG, "prompt": prompts[which], "max_tokens": 30})
                staying[asyncio.ensure_future(stays(target, request))] = right[which]
            else:
                request = target.request({**LONG, "prompt": prompts[which], "max_tokens": 400, "n": 1 + i % 2})
                leaving.append(leaves(target, request, draw.choice(ways), draw.randrange(6)))
        async with asyncio.timeout(300):
            await asyncio.gather(*leaving, *staying)
        for task, text in staying.items():
            assert task.result() == text
        await target.at_rest()

    asyncio.run(main())


def test_a_client_killed_in_mid_stream_leaves_nothing_behind(target):
    request = target.request({**LONG, "prompt": "killed", "max_tokens": 490})
    before = target.state()["generated"]
    command = [sys.executable, "-c", CLIENT, *map(str, target.address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(request)
        process.stdin.close()
        for _ in range(3):
            assert process.stdout.readline()
        process.kill()
    asyncio.run(target.at_rest())
    assert target.state()["generated"] - before < 490, "it was computed to its end"


def test_a_client_that_sent_another_request_behind_its_first_is_missed_when_it_leaves(target):
    """The second one must not keep the server from seeing that the client of the first one has gone."""
    before = target.state()["generated"]
    request = target.request({**LONG, "stream": False, "prompt": "first", "max_tokens": 490})

    async def main():
        writers = []
        for _ in range(4):
            _, writer = await asyncio.open_connection(*target.address)
            writer.write(request * 3)
            await writer.drain()
            writers.append(writer)
        async with asyncio.timeout(30):
            while target.state()["generated"] - before < 40:
                await asyncio.sleep(0.01)
        for writer in writers:
            writer.close()
        await target.at_rest()

    asyncio.run(main())
    assert target.state()["generated"] - before < 4 * 490, "it was computed to its end"


def test_connections_that_say_nothing_are_more_than_a_shell_allows_and_keep_nobody_out(target):
    num = 2 * target.num_descriptors
    socks = [socket.create_connection(target.address, timeout=30) for _ in range(num)]
    try:
        answer = target.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 10)
        assert answer.startswith(b"HTTP/1.1 200")
    finally:
        for sock in socks:
            sock.close()
