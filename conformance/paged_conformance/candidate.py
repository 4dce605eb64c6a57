"""Candidate: one plugin under judgement, as every suite test receives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_core.api.provider import Fit, Provider
    from paged_core.plugins import Plugins, Record


@dataclass(frozen=True, slots=True)
class Candidate:
    """A provider, where it came from, and how it is to be judged.

    `device` is "cpu" or "cuda"; `quick` asks for fewer examples. Capabilities are believed as the provider declares
    them: what it declares must work, what it does not must be refused.
    """

    record: Record
    plugins: Plugins
    device: str
    quick: bool

    @property
    def name(self) -> str:
        """The provider's name."""
        return self.record.name

    @property
    def kind(self) -> str:
        """One of `paged_core.api.provider.KINDS`."""
        return self.record.kind

    @property
    def provider(self) -> Provider[Any, Any]:
        """The cold object."""
        return self.record.provider

    def has(self, capability: str) -> bool:
        """Whether the provider declares `capability`."""
        return capability in self.provider.capabilities

    def fit(self, need: Any) -> Fit:
        """The provider's verdict on `need`; a probe that raises counts as a refusal with that reason."""
        return self.plugins.judge(self.record, need)

    def create(self, need: Any) -> Any:
        """The backend for `need` with the user's settings. Raises PluginUnfitError when `need` does not fit."""
        return self.plugins.create(self.kind, self.name, need)

    def small_need(self, *required: str) -> Any:
        """The smallest need of this kind, requiring the given capabilities."""
        from paged_conformance.needs import small_need

        return small_need(self.kind, self.device, frozenset(required))

    def reasons_not_run(self) -> tuple[str, ...]:
        """Why this candidate cannot run on the asked-for device; empty when it can.

        A loader's fitness depends on a model, so its own tests judge it.
        """
        if self.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                return ("there is no CUDA device here",)
        if self.kind == "loader":
            return ()
        fit = self.fit(self.small_need())
        return () if fit.ok else (fit.reasons or ("it refuses the smallest need without a reason",))

    def assert_refuses(self, capability: str) -> None:
        """Assert that a need which requires `capability` is refused with a reason that names it."""
        fit = self.fit(self.small_need(capability))
        assert not fit.ok, (
            f"{self.name} does not declare {capability!r} but accepts a need that requires it: "
            f"probe(required={{{capability!r}}}) answered {fit}"
        )
        assert any(capability in reason for reason in fit.reasons), (
            f"{self.name} refuses {capability!r} without a reason that names it: {fit}"
        )
