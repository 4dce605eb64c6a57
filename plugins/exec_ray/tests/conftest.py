"""A cluster of two nodes on this machine."""

from __future__ import annotations

import importlib.util

import pytest
from paged_exec_ray import session

from paged_core import ray_session
from paged_core.testing.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def cluster():
    """Ray, entered; two nodes with room for two ranks each. Nothing of it is left afterwards."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'paged-core[ray]'")
    ray_session.prepare("")
    session.leave()  # where another test of this process has entered one
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    nodes.add_node(**node)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny Llama."""
    path = tmp_path_factory.mktemp("model")
    write_tiny_llama(path)
    return path
