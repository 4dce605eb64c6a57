"""Detokenizer: from token ids to text, piece by piece, without ever showing half a character.

The law: with C the end of the prompt, all deltas joined are `decode(C + output)` less `decode(C)`. Hence leading spaces
come out as they would in the middle of a text, and nothing of the prompt is shown. If the prompt ends in the middle of
a character, C ends before it: what the prompt left unfinished is not the answer's, and the answer's own bytes are read
alone.

Broken bytes become U+FFFD as `decode` has it, with one exception: tokenizers with byte fallback spoil a whole run of
bytes when one is broken; here the valid characters of such a run survive.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paged_core.api.loader import Tokenizer

BROKEN = "\ufffd"
CONTEXT_TOKENS = 8
MAX_INCOMPLETE = 3
"""An unfinished UTF-8 character has at most three bytes, so at most three tokens."""
BULK = 16
"""From so many tokens on, one decode of all of them is tried first."""


class Detokenizer:
    """Text of one branch.

    context   tokens that are shown already; they only give the pending ones their surroundings
    pending   tokens of which the last text is not shown yet, because it may be half a character
    shown     what was shown already of the text of both
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._context, self._shown = self._whole_characters(prompt_token_ids)
        self._pending: list[int] = []

    def fork(self) -> Detokenizer:
        """A detokenizer of its own that has seen what this one has."""
        twin = copy.copy(self)
        twin._context, twin._pending = list(self._context), list(self._pending)
        return twin

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens of the output; return the text that became final, often "" in the middle of a character."""
        visible = [token for token in token_ids if not self._is_hidden(token)]
        if len(visible) >= BULK:
            text = self._decode(self._context + self._pending + visible)
            if text.startswith(self._shown) and BROKEN not in text[len(self._shown) :]:
                delta = text[len(self._shown) :]
                self._pending = []
                self._context, self._shown = self._whole_characters(visible)
                return delta
        return "".join([self._push_one(token) for token in visible])

    def flush(self) -> str:
        """The end of the output: the text of what is pending, though it be half a character."""
        delta = self._delta(self._decode(self._context + self._pending))
        if self._broken_apart(delta):
            delta = self._split(self._pending)
        self._context, self._shown, self._pending = [], "", []
        return delta

    def _push_one(self, token: int) -> str:
        self._pending.append(token)
        text = self._decode(self._context + self._pending)
        if text.endswith(BROKEN):
            return self._give_up(text) if len(self._pending) > MAX_INCOMPLETE else ""
        delta = self._delta(text)
        if BROKEN in delta and self._broken_apart(delta):
            before = self._pending[:-1]
            delta = self._split(before) + self._decode(self._pending)[len(self._decode(before)) :]
        return self._settle(delta)

    def _settle(self, delta: str) -> str:
        """The pending tokens' text is final: they become the context. Tokens without text leave no trace in it."""
        if delta or not self._context:
            self._context = self._pending
            self._shown = self._decode(self._context)
        self._pending = []
        return delta

    def _give_up(self, text: str) -> str:
        """More tokens are pending than half a character can have, so something can be released."""
        delta = self._delta(text)
        if self._broken_apart(delta):
            # The tokens spoil each other; those behind the first part may still be the beginning of a character.
            first, num_tokens = self._first_part(self._pending)
            self._pending = self._pending[num_tokens:]
            self._context, self._shown = [], ""
            rest = self._decode(self._pending)
            return first if rest.endswith(BROKEN) else first + self._settle(rest)
        # Tokens that hold the end of one character and the beginning of the next: all but the last character is final.
        self._context, self._pending = [], self._pending[-MAX_INCOMPLETE:]
        self._shown = self._decode(self._pending)[:-1]
        return delta[:-1]

    def _delta(self, text: str) -> str:
        """What `text`, of context and pending tokens, adds to what was shown."""
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        # Byte fallback: broken pending bytes spoiled the text of the context's bytes, which is shown and stands.
        return self._decode(self._pending)

    def _broken_apart(self, delta: str) -> bool:
        """Whether joining the pending tokens makes no character that was not whole in one of them."""
        return delta.count(BROKEN) >= sum(self._decode([token]).count(BROKEN) for token in self._pending)

    def _split(self, tokens: list[int]) -> str:
        """Text of tokens of which some are broken: the characters that can be made, U+FFFD for each other token."""
        parts = []
        while tokens:
            part, num_tokens = self._first_part(tokens)
            parts.append(part)
            tokens = tokens[num_tokens:]
        return "".join(parts)

    def _first_part(self, tokens: list[int]) -> tuple[str, int]:
        """Text and number of the first tokens that make whole characters; of the first one alone if none do."""
        for num_tokens in range(1, min(MAX_INCOMPLETE + 1, len(tokens)) + 1):
            part = self._decode(tokens[:num_tokens])
            if BROKEN not in part:
                return part, num_tokens
        return self._decode(tokens[:1]), 1

    def _whole_characters(self, token_ids: Sequence[int]) -> tuple[list[int], str]:
        """The last few visible tokens and their text, cut so that they begin and end with whole characters."""
        tail: list[int] = []
        for token in reversed(token_ids):
            if not self._is_hidden(token):
                tail.append(token)
                if len(tail) == CONTEXT_TOKENS:
                    break
        tail.reverse()
        for end in range(len(tail), len(tail) - MAX_INCOMPLETE - 1, -1):
            for start in range(MAX_INCOMPLETE + 1):
                context = tail[start : max(end, 0)]
                text = self._decode(context)
                if context and not text.startswith(BROKEN) and not text.endswith(BROKEN):
                    return context, text
        return [], ""

    def _is_hidden(self, token: int) -> bool:
        return self._skip and self._tokenizer.is_special(token)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
