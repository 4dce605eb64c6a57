"""Messages of tools in a conversation: calls that the assistant made and what came of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paged_core.server.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.server.rendering import Conversation
    from paged_core.server.settings import ServeSettings
    from paged_core.server.tools.declared import Tool
    from paged_core.server.tools.dialect import Dialect
    from paged_core.server.tools.formats import CallFormat

Message = dict[str, Any]

_TELLING = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within {opens}{closes} XML tags:
{opens}
{{"name": <function-name>, "{arguments}": <args-json-object>}}
{closes}"""
"""What Hermes and Qwen were trained on."""

_TELLING_BARE = """You have access to the following functions. To call a function, respond with JSON in the format
{{"name": function name, "{arguments}": dictionary of argument names and their values}} and nothing else.

{tools}"""


def speaks_of_tools(messages: Sequence[Message]) -> bool:
    """Whether there is a call or a result among them."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def checked(messages: Sequence[Message], settings: ServeSettings) -> list[Message]:
    """The messages, calls reduced to id, name and arguments (JSON text). ApiError 400 for what is no call or names
    none."""
    return [_checked(f"messages[{i}]", message, settings) for i, message in enumerate(messages)]


def native(chat: Conversation, tools: Sequence[Tool], dialect: Dialect) -> Conversation:
    """As the model's own template takes it."""
    messages = _one_by_one(chat.messages) if dialect.single else chat.messages
    messages = [_with_calls(message, dialect.objects) for message in messages]
    return replace(chat, messages=messages, tools=[tool.shown() for tool in tools] or None)


def written(chat: Conversation, tools: Sequence[Tool], dialect: Dialect) -> Conversation:
    """For a template that knows nothing of tools: they are told in the system message (the first message where there
    can be none), calls are text of the assistant, results are text of the user."""
    messages: list[Message] = []
    after_result = False
    for message in chat.messages:
        is_result = message["role"] == "tool"
        if is_result and after_result:
            messages[-1]["content"] += "\n" + _result_text(message)
        elif is_result:
            messages.append({"role": "user", "content": _result_text(message)})
        else:
            messages.append(_with_calls_as_text(message, dialect.form))
        after_result = is_result
    return replace(chat, messages=_told(messages, tools, dialect) if tools else messages)


def _checked(place: str, message: Message, settings: ServeSettings) -> Message:
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise invalid(f"{place}.tool_call_id must say which call this is the result of", "messages")
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in message.items() if name != "tool_calls"}
    if message["role"] != "assistant" or not isinstance(calls, list):
        raise invalid(f"{place}.tool_calls must be a list, in a message of the assistant", "messages")
    if len(calls) > settings.max_tools:
        most = settings.max_tools
        raise invalid(f"{place}.tool_calls has {len(calls)} entries; this server allows at most {most}", "messages")
    return {**message, "tool_calls": [_call(f"{place}.tool_calls[{i}]", call) for i, call in enumerate(calls)]}


def _call(place: str, call: Any) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise invalid(f"{place} must have a function with a name", "messages")
    assert isinstance(function, dict)
    arguments, id_ = function.get("arguments"), call.get("id")
    if isinstance(arguments, dict):  # what servers of templates, not OpenAI, take
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str | None) or not isinstance(id_, str | None):
        raise invalid(f"{place}: id must be text, and function.arguments JSON text", "messages")
    return {"id": id_ or "", "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """For a template that takes one call a message: several become messages of one call, each before its result."""
    split: list[Message] = []
    waiting: dict[str, list[Message]] = {}  # what comes before the result of a call
    for message in messages:
        if message["role"] == "tool":
            split += [*waiting.pop(message["tool_call_id"], []), message]
            continue
        split += [one for call in waiting.values() for one in call]
        waiting.clear()
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            split.append(message)
        for i, call in enumerate(calls if len(calls) > 1 else []):
            content = message["content"] if i == 0 else None
            waiting.setdefault(call["id"], []).append({**message, "content": content, "tool_calls": [call]})
    return split + [one for call in waiting.values() for one in call]


def _with_calls(message: Message, objects: bool) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    if objects:
        calls = [{**call, "function": _with_object(call["function"])} for call in calls]
    # Templates look into the content, which OpenAI leaves out beside calls.
    return {**message, "content": message["content"] or "", "tool_calls": calls}


def _with_object(function: Message) -> Message:
    """Arguments as an object; what a model garbled stays the text it is, and the template decides."""
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return function
    return {**function, "arguments": arguments} if isinstance(arguments, dict) else function


def _with_calls_as_text(message: Message, form: CallFormat) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [_call_text(call["function"], form) for call in calls]
    content = (message["content"] or "") + "\n" if message["content"] else ""
    return {"role": "assistant", "content": content + form.separator.join(texts)}


def _call_text(function: Message, form: CallFormat) -> str:
    text = f'{{"name": {json.dumps(function["name"])}, "{form.arguments}": {function["arguments"]}}}'
    return text if form.bare else f"{form.opens}{form.margin}{text}{form.margin}{form.closes}"


def _result_text(message: Message) -> str:
    return f"<tool_response>\n{message['content'] or ''}\n</tool_response>"


def _told(messages: list[Message], tools: Sequence[Tool], dialect: Dialect) -> list[Message]:
    form = dialect.form
    text = (_TELLING_BARE if form.bare else _TELLING).format(
        tools="\n".join(json.dumps(tool.shown(), ensure_ascii=False) for tool in tools),
        opens=form.opens,
        closes=form.closes,
        arguments=form.arguments,
    )
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    if dialect.system:
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{text}\n\n{first['content'] or ''}"}, *messages[1:]]
