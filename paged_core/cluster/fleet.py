"""Fleet: how many replicas, of what size, with what settings; all that Ray is told of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_core.engine.assemble import load_settings, locate
from paged_core.engine.hardware import choose_device
from paged_core.errors import ConfigError
from paged_core.plugins import bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve.deployment import Application

    from paged_core.api.loader import Tokenizer
    from paged_core.server.settings import ServeSettings

ENGINE = "engine"
"""Name of the deployment."""
_ROUTER = "paged_core.cluster.ray_router:ReplicaRouter"
_HEALTH_PERIOD_S = 5.0
_HEALTH_TIMEOUT_S = 15.0
"""Three such silences in a row, and Ray replaces a replica whose process does not even say that it lives."""
_STATS_PERIOD_S = 1.0
_NUM_STARTS = 2
_BUSY = 0.75


@dataclass(frozen=True, slots=True)
class Fleet:
    """What was asked for, settled. `name` is the model's, `engine` are keywords of `AsyncLLM`, `least` and `most` bound
    the number of replicas, `cpus` and `gpus` are what each of them takes."""

    name: str
    engine: Mapping[str, Any]
    tokenizer: Tokenizer
    max_num_seqs: int
    least: int
    most: int
    cpus: float
    gpus: float
    serve: ServeSettings

    @classmethod
    def plan(cls, flags: Mapping[str, Any], serve: ServeSettings) -> Fleet:
        """Settle everything, and read the model's spec and tokenizer, so that what is wrong is found before any replica
        starts. Raises what loading an engine here would raise."""
        least, most = serve.replicas, serve.max_replicas or serve.replicas
        if most < least:
            raise ConfigError(f"--max-replicas {most} is less than --replicas {least}")
        settings = load_settings(**flags)
        plugins = bootstrap(settings)
        try:
            tokenizer = locate(settings, plugins).tokenizer
        finally:
            plugins.shutdown()
        engine = settings.model_dump(include=settings.model_fields_set)
        engine["model"] = os.path.abspath(settings.model) if os.path.exists(settings.model) else settings.model
        here = not serve.ray_address
        on_gpu = choose_device(settings.device) == "cuda"
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        cpus = serve.replica_cpus or (max(1.0, cores // most) if here else 1.0)
        gpus = float(on_gpu) if serve.replica_gpus is None else serve.replica_gpus
        if not gpus:
            engine.setdefault("threads", max(1, int(cpus)))
            if here:  # they share the memory of this machine
                engine["kv_memory_fraction"] = settings.kv_memory_fraction / most
        return cls(settings.model, engine, tokenizer, settings.max_num_seqs, least, most, cpus, gpus, serve)

    def engines(self) -> Application:
        """The deployment of the engines."""
        from ray import serve

        from paged_core.cluster.replica import EngineReplica

        return (
            serve.deployment(EngineReplica)
            .options(
                name=ENGINE,
                max_ongoing_requests=self.max_num_seqs + self.serve.max_queue,  # engines have a queue and a scheduler
                max_constructor_retry_count=_NUM_STARTS,
                health_check_period_s=_HEALTH_PERIOD_S,
                health_check_timeout_s=_HEALTH_TIMEOUT_S,
                graceful_shutdown_timeout_s=self.serve.drain,
                graceful_shutdown_wait_loop_s=0.5,
                ray_actor_options={"num_cpus": self.cpus, "num_gpus": self.gpus},
                request_router_config={
                    "request_router_class": _ROUTER,
                    "request_routing_stats_period_s": _STATS_PERIOD_S,
                },
                **self._number(),
            )
            .bind(dict(self.engine), self.serve.stall)
        )

    def _number(self) -> dict[str, Any]:
        if self.most == self.least:
            return {"num_replicas": self.least}
        scaling = {
            "min_replicas": self.least,
            "max_replicas": self.most,
            "target_ongoing_requests": max(1.0, self.max_num_seqs * _BUSY),
        }
        return {"autoscaling_config": scaling}
