"""exec_local: the model runs in this process, on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.api.executor import ExecutorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_core.api.executor import Executor


class LocalExecutorProvider(Provider[ExecutorNeed, "Executor"]):
    """One process, one device: the default."""

    name = "exec_local"
    kind = "executor"
    api = 1
    priority = 100
    summary = "runs the model in this process on one device"

    def probe(self, need: ExecutorNeed) -> Fit:
        """Fits a world of one, and a quantization that some linear layer computes here."""
        reasons = self.missing_capabilities(need.required)
        if need.quantization != "none":
            from paged_core.model.linear import missing_linear

            reasons += missing_linear(need)
        if need.world_size != 1:
            reasons.append(f"exec_local runs on one device, not on {need.world_size}")
        return Fit.judge(reasons, ("use --executor=tp for several devices",))

    def create(self, need: ExecutorNeed, settings: PluginSettings, plugins: PluginRegistry) -> Executor:
        """Creates attention, sampler and loader by name; weights are loaded by `start`."""
        from paged_exec_local.local import LocalExecutor

        return LocalExecutor(need, plugins)


@hookimpl
def paged_executor() -> LocalExecutorProvider:
    """Register exec_local."""
    return LocalExecutorProvider()
