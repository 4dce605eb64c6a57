"""One request over HTTP: what came and when, and the kinds of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from paged_core.bench.serve.client import Client, Target
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from paged_core.bench.serve.record import Reply

URL = "http://fake"


@pytest.fixture
def ask(loop: Any, with_fake: Any) -> Any:
    """`ask(fake, tokens)`: the reply to one request."""

    def run(fake: Any, tokens: int = 3, **target: Any) -> Reply:
        async def work() -> Reply:
            async with Client(Target(**({"base_url": URL} | target)), loop.time) as client:
                return await client.ask("m", "one two", tokens)

        reply: Reply = with_fake(fake, work())
        return reply

    return run


def test_times_are_those_at_which_text_arrived(fake: Any, ask: Any) -> None:
    reply = ask(fake)
    assert reply.text_s == pytest.approx([0.5, 0.6, 0.7])
    assert (reply.num_prompt, reply.num_output, reply.error) == (2, 3, "")


def test_what_is_asked_for_completions_and_chats(fake: Any, ask: Any) -> None:
    ask(fake)
    ask(fake, endpoint="chat", ignore_eos=False, base_url=URL + "/v1/")
    common = {
        "model": "m",
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert fake.bodies == [
        common | {"prompt": "one two", "ignore_eos": True},
        common | {"messages": [{"role": "user", "content": "one two"}]},
    ]


def test_a_role_and_an_empty_text_are_no_token(fake: Any, ask: Any, words: Any) -> None:
    def chat(body: Any) -> list[Any]:
        deltas = [
            {"role": "assistant", "content": ""},
            {"content": "a"},
            {"reasoning_content": "b"},
            {"tool_calls": [{}]},
        ]
        steps = [part for delta in deltas for part in (words.event(choices=[{"delta": delta}]), 1.0)]
        return [*steps, words.event(choices=[{"delta": {}, "finish_reason": "stop"}]), words.done]

    fake.answer = chat
    reply = ask(fake, endpoint="chat")
    assert (reply.text_s, reply.error) == ([1.0, 2.0, 3.0], "")


def test_without_usage_nothing_is_made_up(fake: Any, ask: Any, words: Any) -> None:
    fake.answer = lambda body: [words.text("a"), 0.25, words.text("bc"), words.done]
    reply = ask(fake)
    assert (reply.text_s, reply.num_prompt, reply.num_output) == ([0.0, 0.25], None, None)


def test_several_tokens_in_one_piece_are_one_arrival(fake: Any, ask: Any, words: Any) -> None:
    fake.answer = lambda body: [0.5, words.text("a b c"), words.usage(2, 3), words.done]
    reply = ask(fake)
    assert (reply.text_s, reply.num_output) == ([0.5], 3)


FAILURES = {
    "HTTP 429": (429, "the queue is full"),
    "error event": ["text", "error"],
    "cut stream": ["text"],
    "connection lost": ["text", "drop"],
    "timeout": ["text", 50.0],
    "not OpenAI's format": [b"data: {nonsense\n\n"],
    "no text": ["done"],
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_are_told_apart(kind: str, fake: Any, ask: Any, words: Any) -> None:
    known = {
        "text": words.text("a"),
        "error": words.event(error={"message": "dead"}),
        "done": words.done,
        "drop": words.drop,
    }
    steps = FAILURES[kind]
    fake.answer = lambda body: steps if isinstance(steps, tuple) else [known.get(one, one) for one in steps]
    reply = ask(fake, timeout_s=20.0)
    assert reply.error == kind
    assert reply.detail


def test_a_list_where_an_event_should_be_is_not_openais_format(fake: Any, ask: Any) -> None:
    fake.answer = lambda body: [b"data: [1]\n\n"]
    assert ask(fake).error == "not OpenAI's format"


def test_nobody_there_is_a_failure_of_the_request(loop: Any) -> None:
    async def work() -> Reply:
        async with Client(Target("http://127.0.0.1:1"), loop.time) as client:
            return await client.ask("m", "one", 1)

    assert loop.run_until_complete(work()).error == "no connection"


def test_a_key_is_sent_and_asked_for(fake: Any, loop: Any, with_fake: Any) -> None:
    fake.key = "secret"

    async def models(key: str | None) -> Any:
        async with Client(Target(URL, api_key=key), loop.time) as client:
            return await client.models()

    assert with_fake(fake, models("secret"))[0]["id"] == "fake-model"
    with pytest.raises(ConfigError, match="401: give its key with --api-key"):
        with_fake(fake, models(None))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://"):
        _ = Target(url).root


def test_a_url_that_cannot_be_is_named(loop: Any) -> None:
    async def work() -> None:
        async with Client(Target("http://127.0.0.1:80x"), loop.time) as client:
            await client.models()

    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:80x is no URL"):
        loop.run_until_complete(work())
