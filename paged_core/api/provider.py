"""What every plugin hands over: a Provider, a cold object that describes, judges fitness and creates.

A provider is light. Importing the module that defines it pulls in neither torch nor triton nor numba and touches no
device; the heavy imports happen inside `create`. What `create` returns is a *backend*: the hot object whose abstract
class is in the file of its kind (attention.py, allocator.py, ...).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NeedT = TypeVar("NeedT")
BackendT = TypeVar("BackendT")


@dataclass(frozen=True, slots=True)
class KindInfo:
    """One kind of plugin: its option name, the prefix of its plugin ids, its hook, and the contract versions spoken."""

    kind: str
    prefix: str
    hook: str
    title: str
    api: int
    min_api: int


KINDS: Mapping[str, KindInfo] = {
    info.kind: info
    for info in (
        KindInfo("loader", "load_", "paged_model_loader", "model loader", 1, 1),
        KindInfo("attn", "attn_", "paged_attention", "attention backend", 1, 1),
        KindInfo("alloc", "alloc_", "paged_allocator", "block allocator", 1, 1),
        KindInfo("sched", "sched_", "paged_scheduler", "scheduler", 1, 1),
        KindInfo("preempt", "preempt_", "paged_preemption", "preemption", 1, 1),
        KindInfo("sampler", "sample_", "paged_sampler", "sampler", 1, 1),
        KindInfo("executor", "exec_", "paged_executor", "executor", 1, 1),
    )
}
"""The seven kinds. `api` is the version this core speaks, `min_api` the oldest it still accepts."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A provider's verdict on a need. Not ok: `reasons` holds every reason, `hints` what the user can do."""

    ok: bool
    reasons: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @staticmethod
    def judge(reasons: Sequence[str], hints: Sequence[str] = ()) -> Fit:
        """Fits iff there is no reason against it."""
        return Fit(not reasons, tuple(reasons), tuple(hints) if reasons else ())


class PluginSettings(BaseModel):
    """Base of a provider's settings: frozen, unknown keys refused. Field defaults are the documented defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How another process makes the registry of this one: `bootstrap(Settings.model_construct(**recipe.settings))`.

    `versions` of the distributions by provider name, so that the other process can see whether it has the same.
    """

    settings: Mapping[str, Any]
    versions: Mapping[str, str]


class PluginRegistry(Protocol):
    """What `create` may ask of the registry: another backend by name (wrappers do), or the registry's recipe."""

    def create(self, kind: str, name: str, need: Any) -> Any:
        """Create the backend `name` of `kind` with the user's settings for it.

        Raises UnknownPluginError, PluginUnfitError or PluginLoadError.
        """
        ...

    def recipe(self) -> Recipe:
        """For executors that run elsewhere: every process loads plugins itself, by the same function."""
        ...


class Provider(ABC, Generic[NeedT, BackendT]):
    """One implementation of one kind. Subclass it, fill in the class variables, register an instance by hook.

    `name` is the plugin id (`attn_cpu`); `priority` decides among fitting providers when the user says `auto`;
    `capabilities` are strings, listed in the file of the kind, that engine and conformance suite alike believe.
    `devices` are those it is made for: elsewhere nobody expects it to fit, though it may.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    api: ClassVar[int]
    priority: ClassVar[int] = 0
    summary: ClassVar[str]
    Settings: ClassVar[type[PluginSettings]] = PluginSettings
    capabilities: ClassVar[frozenset[str]] = frozenset()
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})

    @abstractmethod
    def probe(self, need: NeedT) -> Fit:
        """Say whether this implementation can serve `need` here. Allocates nothing, compiles nothing, may not raise.

        A capability that `need.required` names and this provider lacks is a reason that names it
        (`missing_capabilities` words it).
        """

    @abstractmethod
    def create(self, need: NeedT, settings: Any, plugins: PluginRegistry) -> BackendT:
        """Build the backend. `settings` is an instance of `self.Settings`; heavy imports belong here."""

    def missing_capabilities(self, required: frozenset[str]) -> list[str]:
        """Reasons for each required capability that is not declared, ready for `Fit.judge`."""
        return [f"{self.name} does not have the capability {name!r}" for name in sorted(required - self.capabilities)]
