"""Client: requests to a server that speaks OpenAI's API, with the times at which the pieces of the answer arrived."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.bench.serve.events import EventReader
from paged_core.bench.serve.record import Reply
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import aiohttp

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_LONGEST_DETAIL = 200
_KEEP_S = 3.0
"""Idle connections are given up before servers do (uvicorn: 5 s): a request on one that just closed would be lost."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to ask. `base_url` with or without /v1; `timeout_s` is for one request, from first to last byte."""

    base_url: str
    model: str | None = None
    api_key: str | None = None
    endpoint: str = "completions"
    ignore_eos: bool = True
    timeout_s: float = 600.0

    @property
    def root(self) -> str:
        """The URL before /v1. ConfigError when it is none."""
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"--base-url {self.base_url}: a URL with http:// or https:// is needed")
        return self.base_url.rstrip("/").removesuffix("/v1")


class Client:
    """An open client of a `Target`; use it as an asynchronous context. As many connections as there are requests."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.perf_counter) -> None:
        self._target = target
        self._clock = clock
        self._open: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        import aiohttp

        key = self._target.api_key
        self._open = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S),
            timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._session.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._open is not None, "use the client as a context"
        return self._open

    async def models(self) -> list[dict[str, Any]]:
        """What /v1/models lists; empty where there is no such path. ConfigError when nobody answers, or with 401."""
        import aiohttp

        url = f"{self._target.root}/v1/models"
        try:
            async with self._session.get(url) as answer:
                if answer.status in (401, 403):
                    raise ConfigError(f"{url} answers {answer.status}: give its key with --api-key")
                if answer.status != 200:
                    return []
                content = await answer.json(content_type=None)
        except aiohttp.InvalidURL as error:
            raise ConfigError(f"--base-url {self._target.base_url} is no URL") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConfigError(f"no server answers at {url}: {_cause(error)}") from error
        except ValueError as error:
            raise ConfigError(f"{url} answers something that is no JSON: is this OpenAI's API?") from error
        found = content.get("data") if isinstance(content, dict) else None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    async def json_of(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The object that `path` (after the root) answers; None where it answers none: not every server has it."""
        import aiohttp

        try:
            async with self._session.request(method, self._target.root + path, json=body) as answer:
                content = await answer.json(content_type=None) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    async def ask(self, model: str, prompt: str, output_tokens: int) -> Reply:
        """Send one streamed request and read it to its end. Failures are in the reply, never raised."""
        import aiohttp

        reply = Reply()
        url = self._target.root + PATHS[self._target.endpoint]
        try:
            async with self._session.post(url, json=self._body(model, prompt, output_tokens)) as answer:
                if answer.status != 200:
                    reply.error = f"HTTP {answer.status}"
                    reply.detail = (await answer.text(errors="replace"))[:_LONGEST_DETAIL]
                else:
                    await self._read(answer, reply)
        except TimeoutError:
            reply.error = "timeout"
            reply.detail = f"not done after {self._target.timeout_s:g} s"
        except aiohttp.ClientConnectorError as error:
            reply.error, reply.detail = "no connection", _cause(error)
        except aiohttp.ClientError as error:
            reply.error, reply.detail = "connection lost", _cause(error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reply.error, reply.detail = "not OpenAI's format", repr(error)
        return reply

    def _body(self, model: str, prompt: str, output_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._target.ignore_eos:
            body["ignore_eos"] = True
        if self._target.endpoint == "chat":
            return body | {"messages": [{"role": "user", "content": prompt}]}
        return body | {"prompt": prompt}

    async def _read(self, answer: aiohttp.ClientResponse, reply: Reply) -> None:
        reader = EventReader()
        async for piece in answer.content.iter_any():
            now = self._clock()
            for data in reader.feed(piece):
                if data == b"[DONE]":
                    if not reply.text_s:
                        reply.error, reply.detail = "no text", "the answer ended without any"
                    return
                if not _take(json.loads(data), now, reply):
                    return
        reply.error, reply.detail = "cut stream", "it ended without [DONE]"


def _take(event: dict[str, Any], now: float, reply: Reply) -> bool:
    """Note what an event brings; False when it is an error."""
    if event.get("error"):
        reply.error, reply.detail = "error event", json.dumps(event["error"])[:_LONGEST_DETAIL]
        return False
    usage = event.get("usage")
    if usage:
        reply.num_prompt, reply.num_output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if any(_text(choice) for choice in event.get("choices") or ()):
        reply.text_s.append(now)
    return True


def _text(choice: dict[str, Any]) -> Any:
    """What a choice brings of the answer. A role alone is nothing: it comes before the first token is computed."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text")
    return delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")


def _cause(error: Exception) -> str:
    """The system's words, without those of aiohttp around them."""
    inner = getattr(error, "os_error", None)
    return str(inner or error) or type(error).__name__
