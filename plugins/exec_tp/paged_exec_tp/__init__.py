"""exec_tp: the model on several devices or processes of this machine, each with a part of every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from paged_core.api.executor import ExecutorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_core.api.executor import Executor

__all__ = ["TensorParallelProvider", "TensorParallelSettings", "paged_executor"]


class TensorParallelSettings(PluginSettings):
    """Settings of exec_tp."""

    start_timeout_s: float = Field(
        600.0, gt=0, description="seconds a rank may take to start, to load, and for each of the first 16 steps"
    )
    step_timeout_s: float = Field(
        60.0, gt=0, description="seconds without an answer after which a later step counts as hanging"
    )
    shared_memory: bool = Field(
        True, description="ranks on a CPU add up through shared memory; false: through gloo, as over a network"
    )


class TensorParallelProvider(Provider[ExecutorNeed, "Executor"]):
    """One process a rank, on this machine."""

    name: ClassVar[str] = "exec_tp"
    kind: ClassVar[str] = "executor"
    api: ClassVar[int] = 1
    priority: ClassVar[int] = 50
    summary: ClassVar[str] = "tensor parallel: each rank is a process with a part of every layer"
    Settings: ClassVar[type[PluginSettings]] = TensorParallelSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})

    def probe(self, need: ExecutorNeed) -> Fit:
        """Fits a world size that cuts the model evenly, with a GPU for every rank if it is to run on GPUs."""
        from paged_exec_tp.fitness import reasons

        return Fit.judge([*self.missing_capabilities(need.required), *reasons(need)])

    def create(self, need: ExecutorNeed, settings: TensorParallelSettings, plugins: PluginRegistry) -> Executor:
        """The executor; its workers start when it is asked for its capacity."""
        from paged_core.model.parallel.executor import ParallelExecutor
        from paged_core.model.parallel.fleet import Limits
        from paged_exec_tp.processes import launch

        limits = Limits(settings.start_timeout_s, settings.step_timeout_s)
        return ParallelExecutor(need, plugins, lambda: launch(need, settings.shared_memory), limits)


@hookimpl
def paged_executor() -> TensorParallelProvider:
    """Register exec_tp."""
    return TensorParallelProvider()
