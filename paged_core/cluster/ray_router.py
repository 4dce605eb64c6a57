"""ReplicaRouter: LMetric as a request router of Ray Serve. One lives in every process that sends calls to replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.serve.request_router import RequestRouter

from paged_core.cluster.order import Order
from paged_core.cluster.policy import LMetric, Load, Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica


class ReplicaRouter(RequestRouter):  # type: ignore[misc]  # ray is not looked into
    """Ranks replicas for calls whose first argument is an `Order`; leaves the choice for all others to Ray. Ray goes
    down the ranking until a replica has room."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called once by Ray."""
        self._policy = LMetric()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they shall be asked."""
        order = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if not isinstance(order, Order):
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        self._policy.update({name: report_of(replica.routing_stats) for name, replica in by_name.items()})
        ranked = self._policy.rank(order)
        if order.replica is None:
            self._policy.place(order, ranked[0])
        else:  # asked again, since there was no room
            self._policy.move(order, ranked[0])
        return [[by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """A replica has taken the call: perhaps not the first of the ranking."""
        order = pending_request.args[0] if pending_request.args else None
        if isinstance(order, Order) and order.replica != replica_id.unique_id:
            self._policy.move(order, replica_id.unique_id)


def report_of(stats: Mapping[str, Any]) -> Report:
    """What `EngineReplica.record_routing_stats` told; nothing yet, just after a start."""
    loads = {source: Load(*numbers) for source, numbers in stats.get("loads", {}).items()}
    return Report(loads, stats.get("num_blocks", 0), stats.get("block_size", Report().block_size))
