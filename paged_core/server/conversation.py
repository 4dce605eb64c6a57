"""From the messages of a chat request to what a chat template takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.model.chat_template import RESERVED
from paged_core.server.errors import invalid
from paged_core.server.rendering import Conversation

if TYPE_CHECKING:
    from paged_core.server.protocol.chat import ChatRequest
    from paged_core.server.settings import ServeSettings

_NOT_VARIABLES = RESERVED | {"self"}
ROLES = ("system", "developer", "user", "assistant", "tool")


def conversation_of(body: ChatRequest, settings: ServeSettings) -> Conversation:
    """A conversation without tools. ApiError 400 for what cannot be one."""
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("continue_final_message does not go with add_generation_prompt", "continue_final_message")
    return Conversation(
        messages_of(body, settings),
        variables=variables_of(body, settings),
        add_special_tokens=bool(body.add_special_tokens),
        plain_content=settings.plain_content,
        continue_final=bool(body.continue_final_message),
    )


def messages_of(body: ChatRequest, settings: ServeSettings) -> list[dict[str, Any]]:
    """The messages with contents as text; parts of text are joined by line breaks, `developer` is `system`.

    ApiError 400 for what is no message, and for parts that are no text: nothing is fetched for anybody.
    """
    if not body.messages:
        raise invalid("messages is empty: there is nothing to answer", "messages")
    if len(body.messages) > settings.max_messages:
        raise invalid(
            f"messages has {len(body.messages)} entries; this server allows at most {settings.max_messages}", "messages"
        )
    return [_message(i, message) for i, message in enumerate(body.messages)]


def variables_of(body: ChatRequest, settings: ServeSettings) -> dict[str, Any]:
    """Variables of the chat template."""
    given = body.chat_template_kwargs or {}
    if len(given) > settings.max_template_kwargs:
        most = settings.max_template_kwargs
        raise invalid(
            f"chat_template_kwargs has {len(given)} entries; this server allows at most {most}", "chat_template_kwargs"
        )
    clash = sorted(_NOT_VARIABLES & set(given))
    if clash:
        raise invalid(f"{clash[0]} cannot be a variable of the chat template", "chat_template_kwargs")
    if body.modalities is not None and body.modalities != ["text"]:
        raise invalid("modalities may only be text", "modalities")
    own = {
        "add_generation_prompt": body.add_generation_prompt,
        "documents": body.documents,
        "reasoning_effort": body.reasoning_effort,
    }
    return {**{name: value for name, value in own.items() if value is not None}, **given}


def _message(i: int, message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        shown = str(role)[:60] if isinstance(role, str) else type(role).__name__
        raise invalid(f"messages[{i}].role must be one of {', '.join(ROLES)}, not {shown!r}", "messages")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise invalid(f"messages[{i}].content is missing", "messages")
    return {**message, "role": "system" if role == "developer" else role, "content": _text(i, content)}


def _text(i: int, content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"messages[{i}].content must be text or a list of parts", "messages")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in ("text", "input_text", None) or not isinstance(text, str):
            shown = str(kind)[:60]
            raise invalid(f"messages[{i}].content has a part of type {shown!r}: this model reads text only", "messages")
        texts.append(text)
    return "\n".join(texts)
