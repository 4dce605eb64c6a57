"""Bytes that are no request, requests that lie about themselves, and clients that never end, while somebody else is
being answered: every answer of that one must stay right."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from contextlib import contextmanager

import pytest

MATE, NUM_TOKENS = "the batchmate ", 24
WAIT_S = 0.2
"""For answers of which none may come; what comes later is the business of `at_rest`."""
GOOD = {"prompt": "abc", "temperature": 0, "max_tokens": 2}
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


def keyed(lines: bytes, body: bytes = b"") -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-key\r\n" + lines + b"\r\n" + body


JSON = b"Content-Type: application/json\r\n"
CHUNKED = JSON + b"Transfer-Encoding: chunked\r\n"
BODY = json.dumps(GOOD).encode()
BROKEN = {
    "nothing": b"",
    "an empty line": b"\r\n\r\n",
    "noise": bytes(range(256)) * 20,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(60),
    "http/0.9": b"GET /health\r\n\r\n",
    "another version": b"GET /health HTTP/7.3\r\n\r\n",
    "an unknown method": b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the path": b"GET /hea\0lth HTTP/1.1\r\nHost: x\r\n\r\n",
    "high bytes in the path": b"GET /\xff\xfe\xc3\x28 HTTP/1.1\r\nHost: x\r\n\r\n",
    "percent-encoded bytes that are no UTF-8": keyed(b"").replace(b"/v1/completions", b"/v1/models/%ff%fe%00"),
    "broken percent-encoding": keyed(b"").replace(b"/v1/completions", b"/v1/%zz%"),
    "NUL in a header": keyed(b"X-A: a\0b\r\n"),
    "a header without a name": keyed(b": a\r\n"),
    "a header without a colon": keyed(b"abc\r\n"),
    "a folded header": keyed(b"X-A: a\r\n  b\r\n"),
    "a header of high bytes": keyed(b"X-Request-Id: \xff\xfe\r\nX-Request-Timeout: \xff\r\n" + JSON),
    "a bare newline": keyed(JSON).replace(b"\r\n", b"\n"),
    "a length that is no number": keyed(JSON + b"Content-Length: abc\r\n", BODY),
    "a negative length": keyed(JSON + b"Content-Length: -5\r\n", BODY),
    "a length beyond 64 bits": keyed(JSON + b"Content-Length: 99999999999999999999999\r\n", BODY),
    "a length of many digits": keyed(JSON + b"Content-Length: " + b"9" * 6000 + b"\r\n", BODY),
    "two lengths": keyed(JSON + b"Content-Length: 3\r\nContent-Length: 4\r\n", BODY),
    "length and chunks": keyed(CHUNKED + b"Content-Length: 3\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
    "more than its length": keyed(JSON + b"Content-Length: 5\r\n", BODY + b"GET / HTTP/1.1\r\n"),
    "less than its length": keyed(JSON + b"Content-Length: 5000\r\n", BODY),
    "a chunk that is shorter than it says": keyed(CHUNKED, b"ffff\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk that is longer than it says": keyed(CHUNKED, b"2\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk of a size that is none": keyed(CHUNKED, b"xyz\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a negative chunk": keyed(CHUNKED, b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk beyond 64 bits": keyed(CHUNKED, b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "chunks without an end": keyed(CHUNKED, b"%x\r\n" % len(BODY) + BODY + b"\r\n"),
    "chunks of one byte": keyed(CHUNKED, b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    "another encoding of transfer": keyed(JSON + b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "a compressed body": keyed(JSON + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n", b"\x1f\x8b\x08\0"),
    "an expectation": keyed(JSON + b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"{}"),
    "an unknown expectation": keyed(JSON + b"Expect: rain\r\nContent-Length: 2\r\n", b"{}"),
    "an upgrade to a websocket": keyed(
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: abc\r\n"
    ).replace(b"POST", b"GET"),
    "an upgrade to http/2": keyed(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"),
    "two hundred requests at once": (b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 200),
    "a body on a GET": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
}
STRANGE = {
    "invalid UTF-8": b'{"prompt": "\xff\xfe\xfa"}',
    "overlong UTF-8": b'{"prompt": "\xc0\x80"}',
    "surrogates in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "UTF-32": json.dumps(GOOD).encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf" + BODY,
    "NUL between": BODY + b"\0",
    "NUL in a text": b'{"prompt": "a\0b"}',
    "a text without end": b'{"prompt": "abc',
    "two values": BODY + BODY,
    "a number of many digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "a number of many digits behind the point": b'{"prompt": "a", "top_p": 0.' + b"9" * 5000 + b"}",
    "an exponent": b'{"prompt": "a", "temperature": 1e999999999}',
    "a name twice": b'{"prompt": "a", "prompt": ["a", 3, null]}',
    "a name of NUL": b'{"\\u0000": 1, "prompt": {"\\u0000": []}}',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
}
FINE = ("a byte order mark", "NUL in a text", "a number of many digits behind the point")
"""What may be taken, where the rest of the body fits the route."""


@contextmanager
def batchmate(target):
    """Ask the same question again and again meanwhile; every answer must be the right one."""
    right = target.ask(MATE, NUM_TOKENS)
    answers, over = [], threading.Event()

    def keep_asking():
        while not over.is_set() or not answers:
            answers.append(target.ask(f"{MATE}", NUM_TOKENS))

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
    assert set(answers) == {right}


def heads(answer: bytes) -> list[int]:
    """The statuses of all answers."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def error_of(answer: bytes) -> dict:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer[:300]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_broken_http_is_refused_or_cut_and_harms_nobody(target):
    with batchmate(target):
        for name, data in BROKEN.items():
            statuses = heads(target.raw(data, WAIT_S))
            assert all(status < 500 and status != 422 for status in statuses), (name, statuses)


@pytest.mark.parametrize("path", PATHS)
def test_v06_v08_strange_bodies_get_error_objects_and_harm_nobody(target, path):
    with batchmate(target):
        for name, body in STRANGE.items():
            answer = target.raw(target.request(body, path, b"Connection: close\r\n"))
            (status,) = heads(answer)
            assert status == 400 or (status == 200 and name in FINE), (name, answer[:300])
            if status == 400:
                assert error_of(answer)["type"] == "invalid_request_error", name


def test_bytes_flipped_dropped_and_doubled_never_make_a_5xx(target):
    draw = random.Random(11)
    whole = target.request({**GOOD, "stream": True, "stop": ["x"], "logit_bias": {"5": 1}, "logprobs": 2})
    with batchmate(target):
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(draw.choice((1, 1, 2, 5))):
                at = draw.randrange(len(data))
                match draw.randrange(4):
                    case 0:
                        data[at] = draw.randrange(256)
                    case 1:
                        del data[at : at + draw.randrange(1, 20)]
                    case 2:
                        data[at:at] = data[at : at + 30] * draw.randrange(1, 9)
                    case 3:
                        data[at:at] = draw.choice((b"\0", b"\r\n", b"\xff", b'"', b"{", b"]", b"1e999", b": "))
            statuses = heads(target.raw(bytes(data), WAIT_S))
            assert all(status < 500 and status != 422 for status in statuses), (bytes(data), statuses)


def test_v04_a_stream_that_cannot_begin_is_a_plain_refusal(target):
    for wrong in ({"n": 0}, {"max_tokens": -1}, {"temperature": -1}, {"model": "nothing"}):
        answer = target.raw(target.request({**GOOD, "stream": True, **wrong}, headers=b"Connection: close\r\n"))
        assert heads(answer)[0] in (400, 404)
        assert error_of(answer)["param"] in wrong


def test_clients_that_never_end_their_bodies_are_let_go(target):
    """Slow loris: 60 connections that send a byte now and then; the server's time for a body is over at some point."""
    head = target.request(b"")[:-4].replace(b"Content-Length: 0", b"Content-Length: 100000")
    socks = [socket.create_connection(target.address, timeout=30) for _ in range(60)]
    try:
        with batchmate(target):
            for sock in socks:
                sock.sendall(head + b"\r\n\r\n{")
            time.sleep(0.5)
            for sock in socks:
                sock.sendall(b" ")
            assert target.client.get("/health").status_code == 200
            statuses = [heads(sock.recv(1 << 16)) for sock in socks]
        assert statuses == [[408]] * len(socks)
    finally:
        for sock in socks:
            sock.close()


HUGE = 10**9
MANY = 100_000
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (0, {"n": HUGE}),
        (0, {"best_of": HUGE}),
        (0, {"n": HUGE, "best_of": HUGE}),
        (0, {"max_tokens": HUGE}),
        (0, {"logprobs": HUGE}),
        (0, {"prompt_logprobs": HUGE}),
        (0, {"top_k": 10**30}),
        (0, {"seed": 10**30}),
        (0, {"prompt": [HUGE] * 1000}),
        (0, {"prompt": [10**30]}),
        (0, {"prompt": ["a"] * MANY}),
        (0, {"stop": ["a"] * MANY}),
        (0, {"stop": "a" * 10**6}),
        (0, {"stop_token_ids": list(range(MANY))}),
        (0, {"allowed_token_ids": [5] * 500_000}),
        (0, {"bad_words": ["a"] * MANY}),
        (0, {"structured_outputs": {"regex": "(" * 5000}}),
        (0, {"structured_outputs": {"choice": ["a" * 5] * MANY}}),
        (1, {"tools": [TOOL] * 10_000}),
        (1, {"top_logprobs": HUGE, "logprobs": True}),
        (1, {"messages": [{"role": "user", "content": "a"}] * 10_000}),
        (1, {"chat_template_kwargs": {f"k{i}": 1 for i in range(10_000)}}),
        (2, {"prompt": "a" * 10**7}),
        (3, {"tokens": [10**30]}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_z08_what_has_no_bound_is_refused_without_memory(target, path, more):
    base = {0: GOOD, 1: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, 2: {}, 3: {}}[path]
    before = target.resident
    answer = target.raw(target.request({**base, **more}, PATHS[path], b"Connection: close\r\n"))
    assert heads(answer)[0] in (400, 413), answer[:300]
    assert error_of(answer)["message"]
    assert target.resident - before < 100 << 20


def test_whoever_sends_a_large_body_without_a_key_learns_why_it_is_refused(target):
    request = target.request({"prompt": "a" * (3 << 20)}).replace(b"secret-key", b"another")
    for _ in range(5):
        assert error_of(target.raw(request))["code"] == "invalid_api_key"


def test_z08_a_body_of_two_hundred_megabytes_in_chunks_is_cut(target):
    before, most = target.resident, 0
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with socket.create_connection(target.address, timeout=30) as sock:
        try:
            sock.sendall(keyed(CHUNKED))
            for _ in range(200):
                sock.sendall(chunk)
                most = max(most, target.resident)
            pytest.fail("all of it was taken")
        except ConnectionError:
            pass
    assert most - before < 40 << 20


def test_v23_health_is_told_between_the_events_of_a_stream_while_long_texts_are_read(target):
    """Blocking work on the event loop would hold up both."""
    long = target.request({"prompt": "a b " * 900_000, "max_tokens": 1}, headers=b"Connection: close\r\n")

    async def main():
        reader, writer = await asyncio.open_connection(*target.address)
        request = {"prompt": "x", "temperature": 0, "ignore_eos": True, "max_tokens": 480, "stream": True}
        writer.write(target.request(request))
        await reader.readuntil(b"data: ")
        working = [asyncio.ensure_future(asyncio.to_thread(target.raw, long)) for _ in range(3)]
        told, reading = 0, asyncio.ensure_future(reader.readuntil(b"[DONE]"))
        while not reading.done():
            response = await asyncio.to_thread(target.client.get, "/health")
            assert response.status_code == 200
            told += 1
        writer.close()
        assert {heads(answer)[0] for answer in await asyncio.gather(*working)} == {400}
        return told

    assert asyncio.run(main()) >= 3


def test_forms_that_take_long_to_compile_hold_up_nobody_and_stay_within_bounds(target):
    """The batchmate's answers come while they are compiled."""
    forms = ["(a{1000}){1000}", "(((a?){50}){50}){50}b", "(a|aa|aaa)*" * 60, "[a-z]{1,900}" * 40]
    before = target.resident
    with batchmate(target):
        for form in forms:
            request = target.request({**GOOD, "structured_outputs": {"regex": form}}, headers=b"Connection: close\r\n")
            answer = target.raw(request)
            assert heads(answer)[0] in (200, 400), (form, answer[:300])
    assert target.resident - before < 1 << 30
