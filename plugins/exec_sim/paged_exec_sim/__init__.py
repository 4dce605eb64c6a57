"""exec_sim: a model on a device that is not here: steps cost what a cost model says, tokens are noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from paged_core.api.executor import ExecutorNeed
from paged_core.api.hookspecs import hookimpl
from paged_core.api.provider import Fit, PluginRegistry, PluginSettings, Provider

if TYPE_CHECKING:
    from paged_core.api.executor import Executor


class SimSettings(PluginSettings):
    """What is simulated."""

    model: str = Field("", description="name the cost model knows the model by; empty: the engine's name for it")
    device: str = Field("a100-80gb", description="device by name, or a file of `paged-core calibrate`")
    num_devices: int = Field(1, ge=1, description="devices that share the model, tensor parallel")
    cost: str = Field(
        "auto", description="auto, calibrated, roofline, a file of `paged-core calibrate`, module:attribute"
    )
    call_us: float = Field(2.2, ge=0, description="microseconds a swapped key or value chunk costs besides its bytes")
    link_gb_per_s: float = Field(25.0, gt=0, description="GB/s between the tiers when blocks are swapped")
    wait: bool = Field(False, description="let steps take their time, for servers on a real clock")


class SimExecutorProvider(Provider[ExecutorNeed, "Executor"]):
    """Never chosen by itself: whoever wants a simulation names it."""

    name = "exec_sim"
    kind = "executor"
    api = 1
    priority = -100
    summary = "simulates the model: steps cost what a cost model says, tokens are noise"
    Settings = SimSettings
    capabilities = frozenset({"simulated"})

    def probe(self, need: ExecutorNeed) -> Fit:
        """Fits needs that ask for a simulation."""
        reasons = self.missing_capabilities(need.required)
        if need.world_size != 1:
            reasons.append("exec_sim simulates devices of its own (num_devices), not a world of workers")
        return Fit.judge(reasons, ("set num_devices in [plugins.exec_sim]",))

    def create(self, need: ExecutorNeed, settings: SimSettings, plugins: PluginRegistry) -> Executor:
        """Finds the cost model; neither attention nor weights are asked for."""
        from paged_exec_sim.executor import SimExecutor

        return SimExecutor(need, settings)


@hookimpl
def paged_executor() -> SimExecutorProvider:
    """Register exec_sim."""
    return SimExecutorProvider()
