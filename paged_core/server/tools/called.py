"""CallTurn: a conversation with tools; the answer may be, or must be, calls of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError
from paged_core.server.rendering import Conversation, has_control, prompt_ids
from paged_core.server.tools.grammar import answer_grammar, call_grammar
from paged_core.server.tools.plain import PlainReader
from paged_core.server.tools.reader import ToolReader

if TYPE_CHECKING:
    from paged_core.api.loader import Tokenizer
    from paged_core.server.tools.declared import ToolWish
    from paged_core.server.tools.dialect import Dialect
    from paged_core.server.tools.turn import AnswerReader


@dataclass(frozen=True, slots=True)
class CallTurn:
    """`chat` is written for the dialect; `wish` says which calls the answer may hold."""

    chat: Conversation
    wish: ToolWish
    dialect: Dialect

    def prompt(self, tokenizer: Tokenizer) -> list[int]:
        """The template's text as tokens. RequestError where tools or calls could smuggle in control tokens that
        contents may not."""
        if self.chat.plain_content:
            self._check_plain(tokenizer)
        return prompt_ids(tokenizer, self.chat)

    def form(self) -> dict[str, Any] | None:
        """A grammar of calls where one is required, of text and calls where a tool is strict.

        Not the latter where calls need marks that are control tokens, which no grammar allows: there would be none.
        """
        form = self.dialect.form
        if not self.wish.forced:
            can_write = form.bare or not self.dialect.hides_marks
            strict = can_write and any(tool.strict for tool in self.wish.callable)
            return answer_grammar(form, self.wish.callable) if strict else None
        most = 1 if self.dialect.single else self.wish.most
        return call_grammar(form, self.wish.callable, most)

    def params(self) -> dict[str, Any]:
        """Marks that are control tokens must be in the text to be read."""
        shows = self.dialect.hides_marks and self.wish.callable and not self.wish.forced
        return {"skip_special_tokens": False} if shows else {}

    def reader(self) -> AnswerReader:
        """A fresh reader."""
        if not self.wish.callable:
            return PlainReader()
        return ToolReader(self.dialect.form, {tool.name for tool in self.wish.callable}, self.wish.most)

    def _check_plain(self, tokenizer: Tokenizer) -> None:
        """Tools and calls stand outside the contents, where `prompt_ids` takes no care of them."""
        if has_control(tokenizer, json.dumps(self.chat.tools or [], ensure_ascii=False)):
            raise RequestError("tools hold a control token of the model", "tools")
        calls = [message["tool_calls"] for message in self.chat.messages if message.get("tool_calls")]
        if has_control(tokenizer, json.dumps(calls, ensure_ascii=False)):
            raise RequestError("tool_calls hold a control token of the model", "messages")
