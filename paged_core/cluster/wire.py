"""What travels from a replica to whoever asked: `Told`, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_core.api.output import RequestOutput


@dataclass(frozen=True, slots=True)
class Accepted:
    """The call has reached the engine; the first message of every call."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The first output has come, which the caller may not want to see: nothing is left to prefill."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is invalid (RequestError): nothing more follows."""

    message: str
    field: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The newest output of one of the call's prompts, without the prompt, which the caller has."""

    index: int
    output: RequestOutput


Told = Accepted | Begun | Refused | Answer


def answer(index: int, output: RequestOutput) -> Answer:
    """What is sent of an output."""
    return Answer(index, replace(output, prompt_token_ids=[]))
