"""XGrammar: masks of most tokens are computed when the grammar is compiled, the rest by a pushdown automaton."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_core.structured.grammar import JSON_OBJECT, MAX_WHITESPACE
from paged_core.structured.spec import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paged_core.structured.spec import GrammarSpec
    from paged_core.structured.vocabulary import Vocabulary

_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is false: )?")  # time, C++ file and assertion


class XGrammar:
    """`Backend` over the package xgrammar. To another process it travels as its vocabulary, once."""

    travels_once = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._vocabulary = vocabulary
        self._xgrammar: Any = xgrammar
        self._info: Any = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self._num_words = -(-len(vocabulary.tokens) // 32)

    def __reduce__(self) -> tuple[Any, ...]:
        return XGrammar, (self._vocabulary,)

    def compile(self, spec: GrammarSpec) -> bytes:
        """The grammar in xgrammar's own JSON."""
        compiler = self._xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            compiled = self._compiled(compiler, spec)
            _Grammar(self, spec, compiled).matcher().fill(np.zeros(self._num_words, dtype=np.int32))
            return bytes(compiled.serialize_json(), "utf-8")
        except MemoryError:
            raise
        except Exception as error:  # the bindings raise RuntimeError, ValueError and kinds of their own
            if "bad_alloc" in str(error):
                raise MemoryError from error
            raise GrammarError(_WHERE.sub("", str(error).strip()).splitlines()[0][:300]) from error

    def load(self, spec: GrammarSpec, payload: bytes) -> _Grammar:
        """The grammar, ready in milliseconds."""
        compiled = self._xgrammar.CompiledGrammar.deserialize_json(payload.decode(), self._info)
        return _Grammar(self, spec, compiled)

    def matcher(self, compiled: Any) -> Any:
        """The library's matcher of a compiled grammar."""
        return self._xgrammar.GrammarMatcher(compiled)

    def _compiled(self, compiler: Any, spec: GrammarSpec) -> Any:
        if spec.kind == "regex":
            return compiler.compile_regex(spec.text)
        if spec.kind == "grammar":
            return compiler.compile_grammar(spec.text)
        if spec.kind == "choice":
            choices = " | ".join(json.dumps(one, ensure_ascii=False) for one in json.loads(spec.text))
            return compiler.compile_grammar(f"root ::= {choices}")
        schema = JSON_OBJECT if spec.kind == "json_object" else spec.text
        if spec.compact:
            style: dict[str, Any] = {"any_whitespace": False, "separators": (",", ":")}
        else:
            style = {"any_whitespace": True, "max_whitespace_cnt": MAX_WHITESPACE}
        return compiler.compile_json_schema(schema, strict_mode=False, **style)


class _Grammar:
    travels_once = True

    def __init__(self, backend: XGrammar, spec: GrammarSpec, compiled: Any) -> None:
        self._backend, self._spec, self._compiled = backend, spec, compiled
        self.num_bytes: int = compiled.memory_size_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return self._backend.load, (self._spec, bytes(self._compiled.serialize_json(), "utf-8"))

    def matcher(self) -> _Matcher:
        return _Matcher(self._backend.matcher(self._compiled))


class _Matcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, words: NDArray[np.int32]) -> None:
        if self._matcher.is_terminated():
            raise GrammarError("the sentence is complete: nothing can follow")
        self._matcher.fill_next_token_bitmask(words.reshape(1, -1))

    def accept(self, token: int) -> bool:
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def forced(self) -> list[int]:
        return [] if self._matcher.is_terminated() else list(self._matcher.find_jump_forward_tokens())
