"""build: an application of Ray Serve, for `serve run`, `serve deploy` and KubeRay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve.deployment import Application

_INGRESS_REQUESTS = 1 << 12


def build(args: Mapping[str, Any]) -> Application:
    """The OpenAI app in front of replicas of an engine. `args` are the options of `paged-core serve`, their names with
    underscores (model, replicas, max_replicas, replica_gpus, max_model_len, api_key, ...); host, port and ray_address
    are Ray's. `ingresses` is the number of processes that answer HTTP.

    Raises ConfigError for what is wrong with them.
    """
    from ray import serve

    from paged_core.cluster.fleet import Fleet
    from paged_core.cluster.ingress import Ingress
    from paged_core.server.settings import ServeSettings

    values = dict(args)
    ingresses = int(values.pop("ingresses", 1))
    ours = {name: values.pop(name) for name in ServeSettings.model_fields if name in values}
    if {"host", "port", "ray_address"} & set(ours):
        raise ConfigError("host, port and ray_address are Ray's: leave them out of the application's args")
    ours |= {"replicas": int(ours.get("replicas", 0)) or 1, "ray_address": "auto"}
    fleet = Fleet.plan(values, ServeSettings.load(**ours))
    return (
        serve.deployment(serve.ingress()(Ingress))
        .options(
            name="ingress",
            num_replicas=ingresses,
            max_ongoing_requests=_INGRESS_REQUESTS,
            graceful_shutdown_timeout_s=fleet.serve.drain,
            ray_actor_options={"num_cpus": 0.5},
        )
        .bind(fleet.engines(), values, ours)
    )
