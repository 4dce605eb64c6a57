"""An interactive conversation: every turn is sent with all turns before it, which the prefix cache makes cheap."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paged_core.cli.answer import stream_answer
from paged_core.cli.report import note
from paged_core.errors import RequestError

if TYPE_CHECKING:
    from paged_core.api.params import SamplingParams
    from paged_core.engine.llm import LLM

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer"
_PROMPT = "> "


class Chat:
    """A conversation with one model. `template`: with the model's chat template; else each line is completed alone."""

    def __init__(self, llm: LLM, params: SamplingParams, *, system: str | None, template: bool) -> None:
        self._llm = llm
        self._params = params
        self._template = template
        self._opening = [{"role": "system", "content": system}] if system is not None else []
        self.messages: list[dict[str, Any]] = list(self._opening)

    def loop(self) -> None:
        """Read lines from the user until the end."""
        if sys.stdin.isatty():
            _line_editing()
        note(HELP if self._template else f"no chat template in use: every line is completed as it is; {HELP}")
        while True:
            try:
                line = input(_PROMPT if sys.stdin.isatty() else "")
            except EOFError:
                note()
                return
            except KeyboardInterrupt:
                note(f"\n{HELP}")
                continue
            if line.strip() == "/quit":
                return
            self.turn(line)

    def turn(self, line: str) -> None:
        """One line of the user: a command, or something to answer. A refused request leaves the conversation as is."""
        if line.strip() == "/reset":
            self.messages = list(self._opening)
            note("forgotten")
        elif line.strip().startswith("/"):
            note(f"no command {line.strip()}; {HELP}")
        elif line.strip():
            try:
                self._answer(line)
            except RequestError as error:
                note(f"refused: {error}")

    def _answer(self, line: str) -> None:
        asked = [*self.messages, {"role": "user", "content": line}]
        prompt = self._llm.chat_prompt(asked) if self._template else line
        output, stopped = stream_answer(self._llm, prompt, self._params)
        if stopped:
            note("(stopped)")
        if output is not None and output.error:
            note(f"note: {output.error}")
        text = output.outputs[0].text if output is not None else ""
        self.messages = [*asked, {"role": "assistant", "content": text}]


def _line_editing() -> None:
    """Arrow keys and history, where Python was built with them."""
    try:
        import_module("readline")
    except ImportError:
        note("(no readline in this Python: arrow keys do not edit the line)")
