"""Many replicas of one model on Ray Serve. `paged_core.cluster:build` is what `serve run` and KubeRay import."""

from paged_core.cluster.application import build

__all__ = ["build"]
