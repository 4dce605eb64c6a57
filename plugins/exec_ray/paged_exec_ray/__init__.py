"""exec_ray: tensor parallel over the nodes of a Ray cluster; each rank is an actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from paged_core.api.executor import ExecutorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_core.api.executor import Executor

__all__ = ["RayProvider", "RaySettings", "paged_executor", "paged_shutdown"]


class RaySettings(PluginSettings):
    """Settings of exec_ray."""

    address: str = Field(
        "", description="head of the cluster to join, auto for this machine's; empty begins one on this machine"
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="where ranks go: PACK on few nodes, SPREAD on many, STRICT_: on one, or each on its own"
    )
    cpus_per_rank: float = Field(
        0.0, ge=0, description="processors that a rank takes, and computes with; 0: its share of threads, 1 on a GPU"
    )
    model_paths: dict[str, str] = Field(
        default_factory=dict,
        description="where the model is on nodes that have it elsewhere: path by host name or address",
    )
    place_timeout_s: float = Field(60.0, gt=0, description="seconds to wait for room in the cluster")
    start_timeout_s: float = Field(
        600.0, gt=0, description="seconds a rank may take to start, to load, and for each of the first 16 steps"
    )
    step_timeout_s: float = Field(
        60.0, gt=0, description="seconds without an answer after which a later step counts as hanging"
    )


class RayProvider(Provider[ExecutorNeed, "Executor"]):
    """One actor a rank, in a placement group."""

    name: ClassVar[str] = "exec_ray"
    kind: ClassVar[str] = "executor"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 10
    summary: ClassVar[str] = "tensor parallel over a Ray cluster: each rank is an actor with a part of every layer"
    Settings: ClassVar[type[PluginSettings]] = RaySettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})

    def probe(self, need: ExecutorNeed) -> Fit:
        """Fits where Ray is installed and the size cuts the model evenly; whether there is room Ray says later."""
        from paged_exec_ray.fitness import HINTS, reasons

        return Fit.judge([*self.missing_capabilities(need.required), *reasons(need)], HINTS)

    def create(self, need: ExecutorNeed, settings: RaySettings, plugins: PluginRegistry) -> Executor:
        """The executor; its actors start when it is asked for its capacity."""
        from paged_core.model.parallel.executor import ParallelExecutor
        from paged_core.model.parallel.fleet import Limits
        from paged_core.ray_session import prepare

        prepare(settings.address)
        from paged_exec_ray.actors import launch

        limits = Limits(settings.start_timeout_s, settings.step_timeout_s)
        return ParallelExecutor(need, plugins, lambda: launch(need, settings), limits)


@hookimpl
def paged_executor() -> RayProvider:
    """Register exec_ray."""
    return RayProvider()


@hookimpl
def paged_shutdown() -> None:
    """Leave the cluster that an executor of this process has entered."""
    from paged_exec_ray.session import leave

    leave()
