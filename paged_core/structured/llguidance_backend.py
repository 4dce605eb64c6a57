"""LLGuidance: masks are computed as they are needed, under a limit for every step; hardly anything to compile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.structured.grammar import JSON_OBJECT, MAX_WHITESPACE
from paged_core.structured.spec import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.structured.spec import GrammarSpec
    from paged_core.structured.vocabulary import Vocabulary

_BYTES_PER_CHARACTER = 64
"""Rough memory of a parsed grammar for each character of its text; llguidance does not tell."""


class _Tokens:
    """A vocabulary as llguidance wants it. Control tokens get a text that no byte of a grammar can match."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = [token for token, text in enumerate(vocabulary.tokens) if not text]
        self.tokens = [text or b"\xff<%d>" % token for token, text in enumerate(vocabulary.tokens)]
        self._ids = {text: token for token, text in reversed(list(enumerate(vocabulary.tokens))) if text}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The longest tokens first, from the left: how forced text is written, the same on every machine. A byte
        without a token ends it; llguidance goes on by itself."""
        tokens, start = [], 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                token = self._ids.get(text[start:end])
                if token is not None:
                    break
            else:
                break
            tokens.append(token)
            start = end
        return tokens


class LLGuidance:
    """`Backend` over the package llguidance. To another process it travels as its vocabulary, once."""

    travels_once = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._vocabulary = vocabulary
        self._llguidance: Any = llguidance
        wrapper = llguidance.TokenizerWrapper(_Tokens(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(vocabulary.tokens), eos_token=list(vocabulary.eos_token_ids)
        )
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        self._num_words = -(-len(vocabulary.tokens) // 32)

    def __reduce__(self) -> tuple[Any, ...]:
        return LLGuidance, (self._vocabulary,)

    def compile(self, spec: GrammarSpec) -> bytes:
        """Nothing: the text is the compiled form. Compiled here to see that it can be, and within the limits."""
        self._grammar(spec).matcher().fill(np.zeros(self._num_words, dtype=np.int32))
        return b""

    def load(self, spec: GrammarSpec, payload: bytes) -> _Grammar:
        """The grammar, parsed once more; llguidance has no other form of it."""
        del payload
        return self._grammar(spec)

    def _grammar(self, spec: GrammarSpec) -> _Grammar:
        matcher_type = self._llguidance.LLMatcher
        try:
            grammar = self._text(spec)
        except Exception as error:  # the converter of EBNF raises plain Exception
            raise GrammarError(_first_line(str(error))) from error
        matcher = matcher_type(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        return _Grammar(matcher, 4096 + _BYTES_PER_CHARACTER * len(grammar), (self, spec))

    def _text(self, spec: GrammarSpec) -> str:
        matcher, text = self._llguidance.LLMatcher, spec.text
        if spec.kind == "regex":
            regex = self._llguidance.regex_to_lark(text, "dws")  # \d, \w, \s are ASCII, as in xgrammar
            return str(matcher.grammar_from_lark(f"start: /{regex}/"))
        if spec.kind == "grammar":
            from llguidance.gbnf_to_lark import any_to_lark

            return str(matcher.grammar_from_lark(any_to_lark(text)))
        if spec.kind == "choice":
            choices = "|".join("".join(map(_literal, one)) for one in json.loads(text))
            return str(matcher.grammar_from_regex(choices))
        compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        flexible = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{0,{MAX_WHITESPACE}}}"}
        schema = JSON_OBJECT if spec.kind == "json_object" else text
        return str(matcher.grammar_from_json_schema(schema, overrides=compact if spec.compact else flexible))


class _Grammar:
    travels_once = True

    def __init__(self, matcher: Any, num_bytes: int, source: tuple[LLGuidance, GrammarSpec]) -> None:
        self._matcher, self.num_bytes, self._source = matcher, num_bytes, source

    def __reduce__(self) -> tuple[Any, ...]:
        backend, spec = self._source
        return backend.load, (spec, b"")

    def matcher(self) -> _Matcher:
        return _Matcher(self._matcher.deep_copy())


class _Matcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, words: NDArray[np.int32]) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise GrammarError(f"llguidance gave up: {_first_line(self._matcher.get_error())}")

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def forced(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())


def _literal(character: str) -> str:
    """A character that stands for itself in a regular expression."""
    return character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):x}}}"


def _first_line(text: str) -> str:
    """The first line, and the one that says what the error is when that is another."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    told = [line for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0], *told])[:300]
