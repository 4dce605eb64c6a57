"""Marks of suite tests: which candidates a test judges, and in which layer it stands.

@requires("sliding_window")   declared: the test runs; not declared: the refusal is tested instead
@since(2)                     judges only providers that declare api >= 2
@layer("laws")                contract, behaviour, laws, engine or cost (also as a file's `pytestmark`)
"""

from __future__ import annotations

import pytest

LAYERS = ("contract", "behaviour", "laws", "engine", "cost")

DESCRIPTIONS = (
    "paged_requires(*capabilities): runs for declared capabilities; tests the refusal of undeclared ones",
    "paged_since(api): judges only providers that declare this version of their kind's contract or a later one",
    "paged_layer(name): contract, behaviour, laws, engine or cost",
)


def requires(*capabilities: str) -> pytest.MarkDecorator:
    """Judge by what the provider declares. Without one of `capabilities`, a need that requires it must be refused.

    The test then neither runs nor sets up its fixtures; in its place, under its name, `probe` of a small need with
    that capability required must answer not-ok with a reason that names it.
    """
    if not capabilities:
        raise ValueError("requires() needs at least one capability")
    return pytest.mark.paged_requires(*capabilities)


def since(api: int) -> pytest.MarkDecorator:
    """Judge only providers that declare `api` or a later version."""
    return pytest.mark.paged_since(api)


def layer(name: str) -> pytest.MarkDecorator:
    """Place a test in one of LAYERS."""
    if name not in LAYERS:
        raise ValueError(f"no layer {name!r}; there are {', '.join(LAYERS)}")
    return pytest.mark.paged_layer(name)
