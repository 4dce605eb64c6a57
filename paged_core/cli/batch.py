"""A file of prompts in, a file of answers out. A bad line gets an error record and harms no neighbour."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paged_core.api.params import NOT_SUPPORTED, SamplingParams
from paged_core.cli.answer import chat_messages
from paged_core.cli.interrupt import Interrupt
from paged_core.engine.progress import progress_bar
from paged_core.errors import ConfigError, RequestError
from paged_core.settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from paged_core.api.output import CompletionOutput, RequestOutput
    from paged_core.cli.records import Key, Records
    from paged_core.engine.llm import LLM

_PROMPTS = ("prompt", "messages", "prompt_token_ids")
_OVERRIDES = frozenset(field.name for field in fields(SamplingParams) if field.init)
_QUEUE_FACTOR = 2  # requests handed to the engine per sequence it may run: enough that it never waits for us


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the input. `body` is None when the line is bad; `error` then says why."""

    key: Key
    body: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """How a line becomes a prompt and parameters. `chat`: wrap plain prompts as the user's turn of a conversation."""

    sampling: Mapping[str, Any]
    chat: bool
    system: str | None

    def params(self, body: Mapping[str, Any]) -> SamplingParams:
        """The command line's parameters with the line's own over them. RequestError names a wrong one."""
        own = {name: value for name, value in body.items() if name not in (*_PROMPTS, "id")}
        for name in own:
            if name not in _OVERRIDES and name not in NOT_SUPPORTED:
                raise RequestError(f"no such field: {name}{did_you_mean(name, sorted(_OVERRIDES | {*_PROMPTS}))}", name)
        return SamplingParams.from_mapping({**self.sampling, **own})

    def prompt(self, body: Mapping[str, Any], llm: LLM) -> Any:
        """What the engine is given. RequestError when the line names no prompt, or several, or a malformed one."""
        named = [name for name in _PROMPTS if name in body]
        if len(named) != 1:
            raise RequestError(
                f"a line needs one of {', '.join(_PROMPTS)}; this one has {' and '.join(named) or 'none'}"
            )
        value = body[named[0]]
        if named[0] == "prompt_token_ids":
            return {"prompt_token_ids": value}
        if named[0] == "messages":
            if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
                raise RequestError("messages must be a list of objects with role and content", "messages")
            return llm.chat_prompt(value)
        if not isinstance(value, str):
            raise RequestError(f"prompt must be text, not {value!r}", "prompt")
        return llm.chat_prompt(chat_messages(value, self.system)) if self.chat else value


def read_items(path: Path) -> Iterator[Item]:
    """The lines of the input in order, blank ones left out; each has a key of its own."""
    seen: dict[str | int, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _item(line, number, seen)


def _item(line: bytes, number: int, seen: dict[str | int, int]) -> Item:
    at: Key = ("line", number)
    try:
        body = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return Item(at, None, f"not JSON: {error}")
    if not isinstance(body, dict):
        return Item(at, None, "not a JSON object")
    if "id" not in body:
        return Item(at, body)
    name = body["id"]
    if isinstance(name, bool) or not isinstance(name, str | int):
        return Item(at, None, f"id must be text or an integer, not {name!r}")
    if name in seen:
        return Item(at, None, f"id {name!r} is already used on line {seen[name]}")
    seen[name] = number
    return Item(("id", name), body)


def run_batch(llm: LLM, source: Path, records: Records, style: PromptStyle) -> bool:
    """Answer every line of `source` that has no record yet; returns whether Ctrl-C stopped it before the end."""
    run = _Run(llm, records, style)
    with Interrupt() as interrupt:
        run.answer(source, interrupt)
    return interrupt.requested and run.stopped


class _Run:
    """One pass over the input."""

    def __init__(self, llm: LLM, records: Records, style: PromptStyle) -> None:
        self._llm = llm
        self._records = records
        self._style = style
        self._keys: dict[str, Key] = {}  # of requests in the engine
        self._room = _QUEUE_FACTOR * llm.engine.facts.max_num_seqs
        self.stopped = False

    def answer(self, source: Path, interrupt: Interrupt) -> None:
        total = sum(1 for _ in read_items(source))
        engine = self._llm.engine
        items = (item for item in read_items(source) if item.key not in self._records.done)
        more = True
        with progress_bar(total, min(len(self._records.done), total), enabled=True) as advance:
            while more or self._keys:
                if interrupt.requested:
                    engine.abort(list(self._keys))
                    self.stopped = True
                    return
                while more and len(self._keys) < self._room:
                    item = next(items, None)
                    more = item is not None
                    if item is not None and not self._start(item):
                        advance(0)
                for output in engine.step():
                    if output.finished:
                        self._finish(output)
                        advance(sum(len(one.token_ids) for one in output.outputs))

    def _start(self, item: Item) -> bool:
        """Hand a line to the engine; False when it was refused, which is recorded."""
        name = f"batch-{item.key[0]}-{item.key[1]!r}"
        try:
            if item.body is None:
                raise RequestError(item.error or "")
            self._llm.engine.add_request(name, self._style.prompt(item.body, self._llm), self._style.params(item.body))
        except RequestError as error:
            self._records.add(item.key, {"error": str(error)})
            return False
        self._keys[name] = item.key
        return True

    def _finish(self, output: RequestOutput) -> None:
        key = self._keys.pop(output.request_id)
        body: dict[str, Any] = {"outputs": [branch_record(one) for one in output.outputs]}
        num_output = sum(len(one.token_ids) for one in output.outputs)
        body["usage"] = {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": num_output,
            "cached_tokens": output.num_cached_tokens,
        }
        if output.error and all(one.finish_reason == "error" for one in output.outputs):
            body = {"error": output.error}
        elif output.error:
            body["note"] = output.error
        self._records.add(key, body)


def branch_record(branch: CompletionOutput) -> dict[str, Any]:
    """One branch as JSON. `logprobs`, when asked for: one object per token, from token text to log-probability."""
    record: dict[str, Any] = {"text": branch.text, "finish_reason": branch.finish_reason}
    if branch.stop_reason is not None:
        record["stop_reason"] = branch.stop_reason
    if branch.logprobs is not None:
        record["logprobs"] = [
            [{"token_id": token, "token": one.decoded_token, "logprob": one.logprob} for token, one in step.items()]
            for step in branch.logprobs
        ]
    return record


def check_paths(source: Path, target: Path) -> None:
    """ConfigError before anything is loaded: the input cannot be read, or is the output."""
    if not source.is_file():
        raise ConfigError(f"--input {source}: no such file")
    if target.exists() and target.samefile(source):
        raise ConfigError("--input and --output are the same file")
