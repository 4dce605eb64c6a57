"""turn_for: which Turn a chat request gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.server.conversation import conversation_of
from paged_core.server.errors import invalid
from paged_core.server.tools.plain import PlainTurn

if TYPE_CHECKING:
    from paged_core.server.protocol.chat import ChatRequest
    from paged_core.server.state import Server
    from paged_core.server.tools.turn import Turn


def turn_for(server: Server, body: ChatRequest) -> Turn:
    """The turn of this request. ApiError 400 for messages or tools that are none."""
    if body.tools and body.tool_choice != "none":
        raise invalid("this server does not offer tools", "tools")
    return PlainTurn(conversation_of(body, server.settings))
