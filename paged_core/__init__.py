"""paged-core: an LLM inference engine in which every decision and every kernel is a plugin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paged_core.api.hookspecs import hookimpl
    from paged_core.api.output import CompletionOutput, Logprob, RequestOutput
    from paged_core.api.params import SamplingParams
    from paged_core.engine.aio import AsyncLLM
    from paged_core.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "hookimpl",
]

_HOMES = {
    "LLM": "paged_core.engine.llm",
    "AsyncLLM": "paged_core.engine.aio",
    "CompletionOutput": "paged_core.api.output",
    "Logprob": "paged_core.api.output",
    "RequestOutput": "paged_core.api.output",
    "SamplingParams": "paged_core.api.params",
    "hookimpl": "paged_core.api.hookspecs",
}


def __getattr__(name: str) -> Any:
    """Resolve public names on first use (PEP 562), so that importing the package stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'paged_core' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
