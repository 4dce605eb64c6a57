"""TextTokenizer: the contract's Tokenizer over a `tokenizers.Tokenizer`. Imports neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paged_core.errors import RequestError
from paged_core.model.chat_template import ChatTemplate
from paged_core.model.token_text import token_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenizers import Tokenizer as FastTokenizer

_LONG = 2048
"""Characters from which on a text is encoded without holding the lock; below, the batch's own cost is more."""


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What a model says about its tokens beside the vocabulary itself.

    `special_tokens` maps template names (`bos_token`, `eos_token`, `pad_token`, ...) to text; `chat_templates` maps
    "default" and variant names to Jinja source; `special_token_ids` are control tokens known besides those that the
    tokenizer itself marks as special.
    """

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    special_token_ids: frozenset[int] = frozenset()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)


class TextTokenizer:
    """Text to ids and back. Immutable after construction, hence safe to share between threads.

    The wrapped tokenizer must not be used by anybody else: switching its truncation or padding while another thread
    encodes is what raises "Already borrowed".

    BOS law: an encoding never begins with two BOS tokens of which the caller wrote only one. Chat templates that write
    BOS themselves therefore give the same ids whether the rendered prompt is encoded with or without special tokens;
    encode it without (`encode(text, add_special_tokens=False)`), since a template says all that it wants.

    Control tokens that occur in the text are encoded as such, as the template's own must be; whoever passes on text of
    strangers decides whether to let them.
    """

    def __init__(self, tokenizer: FastTokenizer, facts: TokenizerFacts) -> None:
        tokenizer.no_truncation()  # tokenizer.json may hold a training-time limit that would cut prompts silently
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        special = {token_id for token_id, token in added.items() if token.special}
        self._special_ids = frozenset(special | facts.special_token_ids)
        self._hidden_ids = facts.special_token_ids - special  # special to the model, not to `tokenizers`
        self._byte_level = b'"ByteLevel"' in tokenizer.decoder.__getstate__() if tokenizer.decoder else False
        self._chat = ChatTemplate(facts.chat_templates, facts.special_tokens)
        self.vocab_size: int = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.bos_token_id = facts.bos_token_id
        self.eos_token_ids = facts.eos_token_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; with special tokens when the model's own configuration adds them (never a second BOS).

        Raises RequestError when `text` cannot be UTF-8 (a lone surrogate).
        """
        try:
            ids = self._ids(text, add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:
            raise RequestError(f"the prompt is not valid text: {_encoding_fault(text, error)}", "prompt") from error
        if add_special_tokens and self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2:
            del ids[0]
        return ids

    def _ids(self, text: str, special: bool) -> list[int]:
        """`encode` holds Python's lock for as long as it takes (seconds for a megabyte), `encode_batch_fast` does not:
        with it, other threads of a server go on."""
        if not isinstance(text, str) or len(text) < _LONG:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
            return ids
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids, without any clean-up of spaces; incomplete UTF-8 becomes U+FFFD.

        Ids of a padded vocabulary that stand for no token give no text. Raises RequestError on an id outside 0..2**32.
        """
        if skip_special_tokens and self._hidden_ids:
            token_ids = [token_id for token_id in token_ids if token_id not in self._hidden_ids]
        try:
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            raise RequestError("a token id is negative or too large to be one", "token_ids") from error

    def token_text(self, token_id: int) -> str:
        """One token as people read it; part of a character reads `bytes:\\xf0\\x9f`. "" for an id without a token."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None or self.is_special(token_id):
            return token or ""
        return token_text(token, byte_level=self._byte_level)

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token that `skip_special_tokens` drops."""
        return token_id in self._special_ids

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **kwargs: Any
    ) -> str:
        """The prompt text for `messages` with the generation prompt appended; `kwargs` are variables of the template.

        Raises RequestError when the model has no template or its template refuses the messages.
        """
        return self._chat.render(messages, tools, kwargs)


def _encoding_fault(text: object, error: Exception) -> str:
    if not isinstance(text, str):
        return f"it is a {type(text).__name__}, not a string"
    for position, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            return f"character {position} is the lone surrogate U+{ord(character):04X}, half of a UTF-16 pair"
    return str(error)
