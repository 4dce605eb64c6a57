"""Prompts have the lengths that were asked for, by the server's own count where it can be asked."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.bench.serve.client import Client, Target
from paged_core.bench.serve.prompts import WORDS, Prompts, calibrate
from paged_core.workload.traces import Arrival

COSTLY = set(WORDS[::3])


def tokens_of(text: str) -> list[int]:
    """A word is a token; every third one is two."""
    return [i for i, word in enumerate(text.split()) for _ in range(2 if word in COSTLY else 1)]


def like_vllm(body: dict[str, Any]) -> list[int]:
    """A begin token unless told not to; a template of seven tokens around a message."""
    if "messages" in body:
        return [0] * 7 + tokens_of(body["messages"][0]["content"])
    return [0] * body.get("add_special_tokens", True) + tokens_of(body["prompt"])


def like_llamacpp(body: dict[str, Any]) -> list[int]:
    return [0] * body.get("add_special", False) + tokens_of(body.get("content", ""))


@pytest.fixture
def calibrated(loop: Any, with_fake: Any, fake: Any) -> Any:
    def run(tokens: Any, endpoint: str = "completions") -> Prompts:
        fake.tokens_of = tokens

        async def work() -> Prompts:
            async with Client(Target("http://fake"), loop.time) as client:
                return await calibrate(client, "m", endpoint, salt="x", shared_tokens=0)

        found: Prompts = with_fake(fake, work())
        return found

    return run


@pytest.mark.parametrize("server", [like_vllm, like_llamacpp])
@pytest.mark.parametrize("length", [2, 3, 17, 300])
def test_completions_are_exact_with_the_begin_token(calibrated: Any, server: Any, length: int) -> None:
    prompts = calibrated(server)
    text = prompts.text(Arrival(0, length, 1), "a")
    sent = {"prompt": text, "content": text, "add_special": True}
    assert len(server(sent)) == length
    assert "one token each" in prompts.source


def test_chats_are_exact_with_the_template(calibrated: Any) -> None:
    text = calibrated(like_vllm, "chat").text(Arrival(0, 20, 1), "a")
    assert len(like_vllm({"messages": [{"content": text}]})) == 20


def test_where_hardly_a_word_is_one_token_lengths_are_about_right_and_said_so(calibrated: Any) -> None:
    prompts = calibrated(lambda body: [0] * (2 * len(body.get("prompt", "").split())))
    assert len(prompts.text(Arrival(0, 100, 1), "a").split()) == 50
    assert prompts.source.startswith("about: words of 2.00 tokens")


def test_without_tokenize_lengths_are_an_estimate_and_said_so(calibrated: Any) -> None:
    prompts = calibrated(None)
    assert len(prompts.text(Arrival(0, 100, 1), "a").split()) == 100
    assert prompts.source.startswith("estimated")


def test_every_name_has_its_own_text_and_always_the_same() -> None:
    asked = Arrival(0, 50, 1)
    first, again, other = (Prompts(salt="x").text(asked, name) for name in ("a", "a", "b"))
    assert first == again
    assert first.split()[:3] != other.split()[:3]
    assert Prompts(salt="y").text(asked, "a") != first


def test_prompts_that_share_blocks_begin_alike_and_only_so_far() -> None:
    one, two = (
        Prompts().text(Arrival(0, 30, 1, "", blocks, 8), name).split()
        for name, blocks in (("a", (0, 1, 2)), ("b", (0, 1, 9)))
    )
    assert len(one) == len(two) == 30
    assert one[:16] == two[:16]
    assert one[16:24] != two[16:24]


def test_blocks_never_make_a_prompt_longer() -> None:
    assert len(Prompts().text(Arrival(0, 10, 1, "", (0, 1, 2), 8), "a").split()) == 10


def test_a_shared_prefix_begins_every_prompt() -> None:
    prompts = Prompts(shared_tokens=6)
    one, two = (prompts.text(Arrival(0, 10, 1), name).split() for name in ("a", "b"))
    assert one[:6] == two[:6]
    assert one[6:] != two[6:]
    assert prompts.text(Arrival(0, 4, 1), "c").split() == one[:4]


def test_a_prompt_has_at_least_a_word() -> None:
    assert len(Prompts(overhead=9).text(Arrival(0, 1, 1), "a").split()) == 1
