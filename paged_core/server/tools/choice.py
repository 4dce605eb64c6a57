"""turn_for: which Turn a chat request gets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paged_core.server.conversation import conversation_of
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
    if _has_form(body) and not wish.forced:
        wish = replace(wish, callable=())
    dialect = server.dialect
    shown = wish.tools if body.tool_choice != "none" else ()
    write = history.native if dialect.native else history.written
    return CallTurn(write(chat, shown, dialect), wish, dialect)


def _has_form(body: ChatRequest) -> bool:
    asked = body.response_format
    return body.structured_outputs is not None or (asked is not None and asked.type != "text")
