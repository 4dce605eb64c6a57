"""What is known about a plugin: where it comes from (Source), and what it offers (Record) or why not (Fault)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from paged_core.api.provider import Provider
    from paged_core.errors import PluginError


@dataclass(frozen=True, slots=True)
class Owner:
    """A distribution that brings a plugin."""

    dist: str
    version: str

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"


@dataclass(frozen=True, slots=True)
class Source:
    """One plugin: its id (the entry point's name), its value (the module), and the distributions that bring it.

    Two distributions that name the same id and value bring one plugin with two owners. Without owners it was loaded
    for development (`--plugin`); `value` is then the module or path as given.
    """

    id: str
    value: str
    owners: tuple[Owner, ...] = ()

    @property
    def dist(self) -> str:
        """Names of the owning distributions."""
        return " + ".join(owner.dist for owner in self.owners) or "(development)"

    @property
    def version(self) -> str:
        """Their versions, in the same order."""
        return " + ".join(owner.version for owner in self.owners) or "-"

    def __str__(self) -> str:
        if not self.owners:
            return f"plugin {self.id} (loaded from {self.value})"
        return f"plugin {self.id} (distribution {' and '.join(map(str, self.owners))})"


@dataclass(frozen=True, slots=True)
class Record:
    """A provider that can be chosen, and where it came from. `alone`: its plugin offers no other provider."""

    source: Source
    provider: Provider[Any, Any]
    alone: bool = True

    @property
    def name(self) -> str:
        """The provider's name, by which it is chosen."""
        return self.provider.name

    @property
    def kind(self) -> str:
        """One of `paged_core.api.provider.KINDS`."""
        return self.provider.kind

    @property
    def plugin(self) -> str:
        """The plugin id."""
        return self.source.id

    @property
    def dist(self) -> str:
        """The owning distributions."""
        return self.source.dist

    @property
    def version(self) -> str:
        """Their versions."""
        return self.source.version

    @property
    def status(self) -> Literal["ok"]:
        """A record is sound; everything else is a Fault."""
        return "ok"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that cannot be chosen: a blocked or broken plugin, or a provider in conflict. `kind` None: unknown.

    `cause` is the error to raise when it is chosen nevertheless; None for what is merely blocked.
    """

    source: Source
    status: Literal["blocked", "broken", "conflict"]
    reason: str
    name: str
    kind: str | None = None
    cause: PluginError | None = None
