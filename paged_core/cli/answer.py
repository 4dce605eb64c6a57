"""One answer, streamed to stdout."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from paged_core.cli.interrupt import Interrupt

if TYPE_CHECKING:
    from paged_core.api.output import RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.engine.llm import LLM


def stream_answer(llm: LLM, prompt: Any, params: SamplingParams) -> tuple[RequestOutput | None, bool]:
    """Print the answer as it grows; returns its last output and whether Ctrl-C cut it short.

    One branch is streamed; several cannot share a terminal, so they are printed one after the other when all ended.
    """
    printed, last = 0, None
    with Interrupt() as interrupt, closing(llm.stream(prompt, params)) as outputs:  # type: ignore[type-var]
        for last in outputs:
            if params.n == 1:
                text = last.outputs[0].text
                click.echo(text[printed:], nl=False)
                printed = len(text)
            if interrupt.requested:
                break
    if params.n == 1:
        click.echo()
    elif last is not None:
        for branch in last.outputs:
            click.secho(f"--- {branch.index + 1} of {params.n}", bold=True)
            click.echo(branch.text)
    return last, interrupt.requested


def chat_messages(prompt: str, system: str | None) -> list[dict[str, Any]]:
    """A conversation of one question."""
    opening = [{"role": "system", "content": system}] if system is not None else []
    return [*opening, {"role": "user", "content": prompt}]


def has_chat_template(llm: LLM) -> bool:
    """Whether the model can be spoken to in turns. Asked with the plainest conversation there is."""
    from paged_core.errors import RequestError

    try:
        llm.tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
    except RequestError:
        return False
    return True
