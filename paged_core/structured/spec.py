"""GrammarSpec: what is to be compiled, by which backend; equal specs share one compiled grammar."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from paged_core.api.structured import FIELD
from paged_core.errors import RequestError
from paged_core.structured.dialect import beyond_xgrammar

if TYPE_CHECKING:
    from paged_core.api.structured import StructuredOutputsParams


class GrammarError(ValueError):
    """A grammar cannot be compiled, or a token breaks it. The message is fit for whoever sent the request."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`kind` and `text` as in StructuredOutputsParams; `compact`: JSON without whitespace."""

    backend: str
    kind: str
    text: str
    compact: bool


def grammar_spec(params: StructuredOutputsParams, default_backend: str) -> GrammarSpec:
    """The spec, its backend decided: the request's own word, else the engine's, else the rule of `beyond_xgrammar`.

    Raises RequestError when the backend's package is missing; no other backend takes over.
    """
    asked = params.backend if params.backend != "auto" else default_backend
    reason = ""
    if asked == "auto":
        reason = beyond_xgrammar(params.kind, params.text)
        asked = "llguidance" if reason else "xgrammar"
    if find_spec(asked) is None:
        why = f" ({reason})" if reason else ""
        raise RequestError(
            f"structured_outputs needs the package {asked}{why}, which is not installed: "
            "pip install 'paged-core[structured]'",
            FIELD,
        )
    return GrammarSpec(asked, params.kind, params.text, params.disable_any_whitespace)
