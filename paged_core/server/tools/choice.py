"""turn_for: which Turn a chat request gets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paged_core.server.conversation import conversation_of
from paged_core.server.errors import invalid
from paged_core.server.tools import history
from paged_core.server.tools.called import CallTurn
from paged_core.server.tools.declared import wish_of
from paged_core.server.tools.plain import PlainTurn

if TYPE_CHECKING:
    from paged_core.server.protocol.chat import ChatRequest
    from paged_core.server.state import Server
    from paged_core.server.tools.turn import Turn


def turn_for(server: Server, body: ChatRequest) -> Turn:
    """The turn of this request. ApiError 400 for messages or tools that are none.

    A form that the request prescribes (response_format) leaves no room for calls: tools are shown, and not read.
    """
    chat = conversation_of(body, server.settings)
    wish = wish_of(body, server.settings)
    if not wish.tools and not history.speaks_of_tools(chat.messages):
        return PlainTurn(chat)
    chat = replace(chat, messages=history.checked(chat.messages, server.settings))
    form = _form_field(body)
    if form is not None and wish.forced:
        raise invalid(f"a required tool call has a form of its own; {form} does not go with it", form)
    if form is not None:
        wish = replace(wish, callable=())
    dialect = server.dialect
    shown = wish.tools if body.tool_choice != "none" else ()
    write = history.native if dialect.native else history.written
    return CallTurn(write(chat, shown, dialect), wish, dialect)


def _form_field(body: ChatRequest) -> str | None:
    """The field that prescribes the answer's form."""
    if body.response_format is not None and body.response_format.type != "text":
        return "response_format"
    return None if body.structured_outputs is None else "structured_outputs"
