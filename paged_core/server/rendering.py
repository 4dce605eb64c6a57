"""From messages to the token ids of a prompt, by way of the model's chat template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paged_core.api.loader import Tokenizer

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Private-use characters around contents while a template runs: they stand for nothing and survive every template."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given, and how what comes out of it is read.

    messages         as `conversation.messages_of` makes them
    tools            JSON objects for the template, or None
    variables        of the template
    plain_content    control tokens that occur in contents are text (`encode_plain`); otherwise they are what the model
                     takes them for, which lets whoever writes a content end its turn
    continue_final   the last message is the beginning of the answer
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = False
    plain_content: bool = False
    continue_final: bool = False


def prompt_ids(tokenizer: Tokenizer, chat: Conversation) -> list[int]:
    """Token ids of the prompt. Special tokens are written by the template itself, and added to only on demand.

    RequestError when the template refuses the messages.
    """
    if not chat.plain_content or not any(has_control(tokenizer, text) for text in _contents(chat)):
        return tokenizer.encode(_render(tokenizer, chat, chat.messages), add_special_tokens=chat.add_special_tokens)
    marked = [_marked(message) for message in chat.messages]
    ids: list[int] = []
    for text, is_content in _parts(_render(tokenizer, chat, marked)):
        special = chat.add_special_tokens and not ids
        ids += encode_plain(tokenizer, text) if is_content else tokenizer.encode(text, add_special_tokens=special)
    return ids


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` without any control token: where the text spells one, it is cut in the middle of the spelling."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    control = next((token for token in ids if tokenizer.is_special(token)), None)
    if control is None:
        return ids
    spelling = tokenizer.decode([control], skip_special_tokens=False)
    at = text.find(spelling)
    if at < 0 or len(spelling) < 2:
        raise RequestError("a content holds a control token that cannot be written as text", "messages")
    cut = at + len(spelling) // 2
    return encode_plain(tokenizer, text[:cut]) + encode_plain(tokenizer, text[cut:])


def has_control(tokenizer: Tokenizer, text: str) -> bool:
    """Whether `text` spells a control token."""
    return any(tokenizer.is_special(token) for token in tokenizer.encode(text, add_special_tokens=False))


def _render(tokenizer: Tokenizer, chat: Conversation, messages: list[dict[str, Any]]) -> str:
    if not chat.continue_final:
        return tokenizer.apply_chat_template(messages, tools=chat.tools, **chat.variables)
    last = messages[-1].get("content")
    if messages[-1].get("role") != "assistant" or not isinstance(last, str) or not last.strip():
        raise RequestError("continue_final_message needs a last message of the assistant with a content", "messages")
    variables = {**chat.variables, "add_generation_prompt": False}
    text = tokenizer.apply_chat_template(messages, tools=chat.tools, **variables)
    end = text.rfind(last.strip())
    if end < 0:
        raise RequestError("the chat template changes the last message, so it cannot be continued", "messages")
    return text[: end + len(last.strip())]


def _contents(chat: Conversation) -> Iterator[str]:
    return (text for message in chat.messages if isinstance(text := message.get("content"), str))


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    if _OPEN in content or _CLOSE in content:
        raise RequestError("a content holds the characters U+E000 or U+E001, which are reserved here", "messages")
    return {**message, "content": f"{_OPEN}{content}{_CLOSE}"}


def _parts(rendered: str) -> Iterator[tuple[str, bool]]:
    """Text of the template and of contents, in turns."""
    for i, part in enumerate(rendered.split(_OPEN)):
        content, _, rest = part.partition(_CLOSE) if i else ("", "", part)
        if content:
            yield content, True
        if rest:
            yield rest, False
