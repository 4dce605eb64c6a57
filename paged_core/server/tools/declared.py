"""ToolWish: the tools of a request and what its tool_choice wants of them, checked."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.api.json_schema import check_schema
from paged_core.server.errors import invalid

if TYPE_CHECKING:
    from paged_core.server.protocol.chat import ChatRequest
    from paged_core.server.settings import ServeSettings

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_CHOICES = ("auto", "none", "required")
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared function. `parameters`: the JSON Schema of its arguments, an object; `strict`: a call that the model
    makes by itself obeys it, too."""

    name: str
    parameters: dict[str, Any]
    description: str | None = None
    strict: bool = False

    def shown(self) -> dict[str, Any]:
        """As templates take it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class ToolWish:
    """`tools`: all that were declared; `callable`: those that may be called, none of them where none may;
    `forced`: the answer must be a call; `most`: calls in one answer, None is any number."""

    tools: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    forced: bool = False
    most: int | None = None


def wish_of(body: ChatRequest, settings: ServeSettings) -> ToolWish:
    """What the request wants. ApiError 400 names `tools` or `tool_choice`."""
    tools = _tools_of(body.tools or [], settings)
    choice = body.tool_choice
    if not tools:
        if choice not in (None, "none"):
            raise invalid("tool_choice needs tools to choose from", "tool_choice")
        return ToolWish()
    most = 1 if body.parallel_tool_calls is False else None
    if isinstance(choice, dict):
        return _chosen(tools, choice, most)
    if choice is not None and choice not in _CHOICES:
        raise invalid(f"tool_choice must be one of {', '.join(_CHOICES)}, or name a function", "tool_choice")
    if choice == "none":
        return ToolWish(tools)
    return ToolWish(tools, tools, choice == "required", most)


def _chosen(tools: tuple[Tool, ...], choice: dict[str, Any], most: int | None) -> ToolWish:
    """A tool_choice that names one function, or several that are allowed."""
    kind = choice.get("type")
    if kind == "function":
        return ToolWish(tools, (_named(tools, choice),), forced=True, most=1)
    allowed = choice.get("allowed_tools")
    if kind != "allowed_tools" or not isinstance(allowed, dict):
        raise invalid('tool_choice must be {"type": "function", "function": {"name": ...}}', "tool_choice")
    mode, names = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required") or not isinstance(names, list) or not names:
        raise invalid("tool_choice.allowed_tools needs a mode (auto or required) and tools", "tool_choice")
    chosen = {tool.name: tool for tool in (_named(tools, one) for one in names)}
    return ToolWish(tools, tuple(chosen.values()), mode == "required", most)


def _named(tools: tuple[Tool, ...], entry: Any) -> Tool:
    function = entry.get("function") if isinstance(entry, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice has no function.name", "tool_choice")
    for tool in tools:
        if tool.name == name:
            return tool
    raise invalid(f"tool_choice names {name[:128]!r}, which is not among the tools", "tool_choice")


def _tools_of(entries: list[dict[str, Any]], settings: ServeSettings) -> tuple[Tool, ...]:
    if len(entries) > settings.max_tools:
        raise invalid(f"tools has {len(entries)} entries; this server allows at most {settings.max_tools}", "tools")
    size = len(json.dumps(entries))
    if size > settings.max_schema:
        raise invalid(f"tools has {size} characters; this server allows at most {settings.max_schema}", "tools")
    tools: dict[str, Tool] = {}
    for i, entry in enumerate(entries):
        tool = _tool(f"tools[{i}]", entry)
        if tool.name in tools:
            raise invalid(f"tools[{i}]: there are two functions {tool.name!r}", "tools")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(place: str, entry: dict[str, Any]) -> Tool:
    function = entry.get("function")
    if entry.get("type") != "function" or not isinstance(function, dict):
        raise invalid(f'{place} must be {{"type": "function", "function": {{"name": ...}}}}', "tools")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{place}.function.name must be 1 to 128 letters, digits or _ . : / -", "tools")
    if description is not None and not isinstance(description, str):
        raise invalid(f"{place}.function.description must be text", "tools")
    if not isinstance(function.get("strict") or False, bool):
        raise invalid(f"{place}.function.strict must be true or false", "tools")
    parameters = function.get("parameters") or NO_PARAMETERS
    if not isinstance(parameters, dict):
        raise invalid(f"{place}.function.parameters must be a JSON Schema", "tools")
    fault = check_schema(parameters)
    if fault:
        raise invalid(f"{place}.function.parameters is not a JSON Schema: {fault}", "tools")
    if parameters.get("type", "object") != "object":
        raise invalid(f"{place}.function.parameters must describe an object", "tools")
    return Tool(name, parameters, description, bool(function.get("strict")))
