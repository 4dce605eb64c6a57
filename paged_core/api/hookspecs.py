"""The hooks a plugin may implement. All are cold: none is ever called while a request is in flight.

from paged_core import hookimpl

@hookimpl
def paged_scheduler():
    return MyProvider()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from paged_core.api.provider import Fit, Provider

PROJECT = "paged_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Offer = "Provider[Any, Any] | Sequence[Provider[Any, Any]]"


@hookspec
def paged_model_loader() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one loader provider or a list of them (`paged_core.api.loader`)."""


@hookspec
def paged_attention() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one attention provider or a list of them (`paged_core.api.attention`)."""


@hookspec
def paged_allocator() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one allocator provider or a list of them (`paged_core.api.allocator`)."""


@hookspec
def paged_scheduler() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one scheduler provider or a list of them (`paged_core.api.scheduler`)."""


@hookspec
def paged_preemption() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one preemption provider or a list of them (`paged_core.api.preemption`)."""


@hookspec
def paged_sampler() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one sampler provider or a list of them (`paged_core.api.sampler`)."""


@hookspec
def paged_executor() -> Provider[Any, Any] | Sequence[Provider[Any, Any]]:  # type: ignore[empty-body]
    """Return one executor provider or a list of them (`paged_core.api.executor`)."""


@hookspec
def paged_cli(group: click.Group) -> None:
    """Add commands to the `paged-core` command group."""


@hookspec(firstresult=True)
def paged_choose(kind: str, need: Any, fits: Sequence[tuple[str, Fit]]) -> str | None:
    """Override the `auto` choice for `kind`: return the name of one fitting provider, or None to abstain.

    `fits` holds (name, verdict) of every provider of the kind, best priority first.
    """


@hookspec
def paged_shutdown() -> None:
    """Release what the plugin holds process-wide; called once when the program ends."""
