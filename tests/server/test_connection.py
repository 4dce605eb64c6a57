"""What comes before a body is bounded, in bytes and in time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from paged_core.server import connection
from paged_core.server.connection import MAX_HEAD, Connection

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def serving(house):
    """Real sockets over the app: yields a function that opens a connection."""
    server = house(["Hi"])

    @asynccontextmanager
    async def serve(app=server.app):
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
        opened = []

        async def connect():
            opened.append(await asyncio.open_connection(*listening.sockets[0].getsockname()))
            return opened[-1]

        connect.tasks = state.tasks  # of all requests that are being answered
        try:
            yield connect
        finally:
            for _, writer in opened:
                writer.transport.abort()
            listening.close()
            async with asyncio.timeout(30):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.005)  # for the ends of ours

    return serve


async def answer_to(connect, *pieces):
    """Status line of the answer, b"" for none; sends until the server closes."""
    reader, writer = await connect()
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.readline(), 30)
    except ConnectionError:
        return b""


def run(serving, *pieces):
    async def main():
        async with serving() as connect:
            return await answer_to(connect, *pieces)

    return asyncio.run(main())


def test_ordinary_requests_pass_in_pieces_of_any_size(serving):
    whole = REQUEST + b"X-A: " + b"a" * 20_000 + b"\r\n\r\n"
    assert run(serving, whole).startswith(b"HTTP/1.1 200")
    assert run(serving, *(whole[i : i + 700] for i in range(0, len(whole), 700))).startswith(b"HTTP/1.1 200")


def test_a_large_body_that_comes_with_its_head_is_not_taken_for_one(serving):
    body = b'{"prompt": "abc", "temperature": 0, "padding": "' + b"x" * 200_000 + b'"}'
    head = POST + f"Content-Length: {len(body)}\r\n\r\n".encode()
    assert run(serving, head + body).startswith(b"HTTP/1.1 200")
    chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    assert run(serving, chunked + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "pieces",
    [
        [REQUEST, *[b"X-%d: " % i + b"a" * 1000 + b"\r\n" for i in range(100)], b"\r\n"],
        [REQUEST + b"X-A: ", *[b"a" * 1000] * 100, b"\r\n\r\n"],
        [REQUEST + b"X-A", *[b"a" * 1000] * 100, b": 1\r\n\r\n"],
        [b"GET /", *[b"a" * 1000] * 100, b" HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"GET /" + b"a" * 2 * MAX_HEAD + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
        [POST + b"Transfer-Encoding: chunked\r\n\r\n5;", *[b"a" * 1000] * 100, b"\r\nhello\r\n0\r\n\r\n"],
    ],
    ids=["many headers", "a long value", "a long name", "a long path", "at once", "a chunk's extension"],
)
def test_a_head_without_end_ends_its_connection(serving, pieces):
    assert run(serving, *pieces)[:12] in (b"HTTP/1.1 400", b"")


def test_a_connection_without_a_request_is_closed(serving, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    assert run(serving) == b""
    assert run(serving, b"GET /hea") == b""
    assert run(serving, REQUEST) == b""


def test_a_request_that_is_being_answered_has_time(serving, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)

    async def main():
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(POST + b"Content-Length: 15\r\n\r\n")
            await asyncio.sleep(0.15)
            writer.write(b'{"prompt": "a"}')
            return await reader.readline()

    assert asyncio.run(main()).startswith(b"HTTP/1.1 200")


def test_connections_can_be_used_again(serving):
    async def main():
        async with serving() as connect:
            reader, writer = await connect()
            for _ in range(3):
                writer.write(REQUEST + b"X-A: " + b"a" * 30_000 + b"\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                assert head.startswith(b"HTTP/1.1 200")

    asyncio.run(main())


def test_an_answer_before_the_end_of_a_body_reaches_the_client_that_is_still_sending(serving):
    """Closed with data unread, a connection is reset, and the answer lost."""
    xml, unknown = POST.replace(b"/json", b"/xml"), b"<>" + POST
    for head, size, status in ((POST, 12, b"413"), (xml, 3, b"415"), (POST[1:], 3, b"400"), (unknown, 3, b"400")):
        whole = head + b"Content-Length: %d\r\n\r\n" % (size << 20) + bytes(size << 20)
        assert run(serving, whole)[9:12] == status, head


async def keep_sending(writer):
    while True:
        writer.write(bytes(100_000))
        await writer.drain()
        await asyncio.sleep(0)


def test_what_follows_an_answer_is_bounded_in_bytes_and_in_time(serving, monkeypatch):
    head = POST + b"Content-Length: 1000000000\r\n\r\n"

    async def main():
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(head)
            assert (await reader.read())[9:12] == b"413"  # and the end of what the server has to say
            with pytest.raises(ConnectionError):
                await keep_sending(writer)

    monkeypatch.setattr(connection, "MAX_REST", 1 << 20)
    asyncio.run(asyncio.wait_for(main(), 60))
    monkeypatch.setattr(connection, "MAX_REST", 1 << 40)
    monkeypatch.setattr(connection, "REST_TIMEOUT_S", 0.05)
    asyncio.run(asyncio.wait_for(main(), 60))


def test_requests_sent_before_an_answer_are_not_queued_and_the_answer_comes_whole(serving):
    body = b'{"prompt": "abc", "temperature": 0}'
    whole = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def main(*pieces):
        async with serving() as connect:
            reader, writer = await connect()
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            return await asyncio.wait_for(reader.read(), 30)

    for pieces in ([whole * 50], [whole] * 50, [whole, REQUEST]):
        answer = asyncio.run(main(*pieces))
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"}")


def test_a_body_that_breaks_off_in_the_parser_ends_its_request_without_a_word(serving, monkeypatch, caplog):
    """The parser has answered already; the application must neither wait for the rest nor answer too."""
    monkeypatch.setattr(connection, "REST_TIMEOUT_S", 3600)
    broken = POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"

    async def main():
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(broken)
            answer = await asyncio.wait_for(reader.read(), 30)
            async with asyncio.timeout(30):  # the client is still there, and sends no more
                while connect.tasks:
                    await asyncio.sleep(0.005)
            return answer

    assert asyncio.run(main()).count(b"HTTP/1.1 400") == 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


PART, NUM_PARTS = bytes(1 << 20), 40


async def large(scope, receive, send):
    """An application with much to say."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(NUM_PARTS):
        await send({"type": "http.response.body", "body": PART, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def read_all(reader, pause_s):
    """The number of bytes."""
    num_bytes = 0
    while part := await reader.read(1 << 18):
        num_bytes += len(part)
        await asyncio.sleep(pause_s)
    return num_bytes


def test_a_client_that_reads_nothing_loses_its_connection(serving, monkeypatch):
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.1)

    async def main():
        async with serving(large) as connect, asyncio.timeout(60):
            reader, writer = await connect()
            writer.write(REQUEST + b"\r\n")
            await reader.read(1)
            while connect.tasks:
                await asyncio.sleep(0.005)
            return await read_all(reader, 0)

    assert asyncio.run(main()) < NUM_PARTS * len(PART), "what had left the server already"


def test_a_client_that_reads_slowly_gets_everything(serving, monkeypatch):
    """It takes longer for a buffer than a client that reads nothing has."""
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.1)

    async def main():
        async with serving(large) as connect, asyncio.timeout(60):
            reader, writer = await connect()
            writer.write(REQUEST + b"Connection: close\r\n\r\n")
            return await read_all(reader, 0.002)

    assert asyncio.run(main()) > NUM_PARTS * len(PART)
