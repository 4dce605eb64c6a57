"""paged-core: an LLM inference engine in which every decision and every kernel is a plugin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paged_core.api.flat_logprobs import FlatLogprobs
    from paged_core.api.hookspecs import hookimpl
    from paged_core.api.logits import LogitsProcessor
    from paged_core.api.output import CompletionOutput, Logprob, RequestOutput
    from paged_core.api.output_kind import RequestOutputKind
    from paged_core.api.params import SamplingParams
    from paged_core.api.repetition import RepetitionDetectionParams
    from paged_core.api.structured import StructuredOutputsParams
    from paged_core.engine.aio import AsyncLLM
    from paged_core.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "FlatLogprobs",
    "LogitsProcessor",
    "Logprob",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "hookimpl",
]

_HOMES = {
    "LLM": "paged_core.engine.llm",
    "AsyncLLM": "paged_core.engine.aio",
    "CompletionOutput": "paged_core.api.output",
    "FlatLogprobs": "paged_core.api.flat_logprobs",
    "LogitsProcessor": "paged_core.api.logits",
    "Logprob": "paged_core.api.output",
    "RepetitionDetectionParams": "paged_core.api.repetition",
    "RequestOutput": "paged_core.api.output",
    "RequestOutputKind": "paged_core.api.output_kind",
    "SamplingParams": "paged_core.api.params",
    "StructuredOutputsParams": "paged_core.api.structured",
    "hookimpl": "paged_core.api.hookspecs",
}


def __getattr__(name: str) -> Any:
    """Resolve public names on first use (PEP 562), so that importing the package stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'paged_core' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
