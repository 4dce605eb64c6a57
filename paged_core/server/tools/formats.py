"""CallFormat: how a family of models writes tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A call is `opens`, a JSON object, `closes`.

    arguments   what the object calls its arguments where the answer is forced; both names are read
    margin      written between the marks and the object where the answer is forced
    separator   written between calls
    bare        an object that begins the answer, or follows a call, needs no `opens`
    """

    name: str
    opens: str
    closes: str
    arguments: str
    margin: str
    separator: str
    bare: bool


HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>", "arguments", "\n", "\n", bare=False)
"""Hermes and Qwen 2.5, 3: <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>"""

LLAMA3_JSON = CallFormat("llama3_json", "<|python_tag|>", "", "parameters", "", "; ", bare=True)
"""Llama 3.1, 3.2 and 3.3: {"name": ..., "parameters": {...}}, after <|python_tag|> or not."""

FORMATS = {one.name: one for one in (HERMES, LLAMA3_JSON)}
"""By the names that vLLM has for their parsers."""
