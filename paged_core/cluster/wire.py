"""What travels from a replica to whoever asked: `Told`, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.api.output import CompletionOutput, RequestOutput


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
    """What is new of one of the call's prompts, in the form of an output: of each branch the text, tokens and
    log-probabilities since the answer before, and no prompt."""

    index: int
    output: RequestOutput


Told = Accepted | Begun | Refused | Answer


class Cutter:
    """Cuts growing outputs of a call into what is new. They only ever grow at their end (`CompletionOutput`): a long
    stream would else be sent again and again."""

    def __init__(self) -> None:
        self._shown: dict[tuple[int, int], tuple[int, int, int]] = {}  # of a prompt's branch: characters, tokens, ...
        self._has_prompt: set[int] = set()

    def cut(self, index: int, output: RequestOutput) -> Answer:
        """What is new since the last output of this prompt."""
        branches = [self._branch(index, branch) for branch in output.outputs]
        told = None if index in self._has_prompt else output.prompt_logprobs
        if told is not None:
            self._has_prompt.add(index)
        return Answer(index, replace(output, prompt_token_ids=[], outputs=branches, prompt_logprobs=told))

    def _branch(self, index: int, branch: CompletionOutput) -> CompletionOutput:
        text, tokens, logprobs = self._shown.get((index, branch.index), (0, 0, 0))
        self._shown[index, branch.index] = (len(branch.text), len(branch.token_ids), len(branch.logprobs or ()))
        return replace(
            branch,
            text=branch.text[text:],
            token_ids=branch.token_ids[tokens:],
            logprobs=None if branch.logprobs is None else branch.logprobs[logprobs:],
        )


class Joiner:
    """The other end: makes whole outputs again. `prompts`: token ids of the call's prompts."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._prompts = prompts
        self._branches: dict[tuple[int, int], CompletionOutput] = {}
        self._prompt_logprobs: dict[int, Any] = {}

    def join(self, answer: Answer) -> RequestOutput:
        """The output that was cut; it is the reader's own."""
        index, output = answer.index, answer.output
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[index] = output.prompt_logprobs
        return replace(
            output,
            prompt_token_ids=list(self._prompts[index]),
            outputs=[self._branch(index, branch) for branch in output.outputs],
            prompt_logprobs=self._prompt_logprobs.get(index),
        )

    def _branch(self, index: int, new: CompletionOutput) -> CompletionOutput:
        old = self._branches.get((index, new.index))
        whole = new
        if old is not None:
            logprobs = new.logprobs
            if logprobs is not None and old.logprobs is not None:
                logprobs = old.logprobs[:]
                for position in new.logprobs or ():
                    logprobs.append(position)  # type: ignore[attr-defined]  # a list, or FlatLogprobs
            whole = replace(new, text=old.text + new.text, token_ids=old.token_ids + new.token_ids, logprobs=logprobs)
        self._branches[index, new.index] = whole
        return whole
