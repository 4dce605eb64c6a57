"""Replicas in a cluster of two logical nodes that is joined: one on each, one node lost, one come; and the application
that Kubernetes deploys, behind Ray's own proxy."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from paged_core import SamplingParams
from paged_core.server.errors import ApiError
from paged_core.server.settings import ServeSettings
from tests.cluster.conftest import ENVIRONMENT, PROGRAM, STORE_BYTES, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets that Ray leaves open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
BOUND_S = 240
ENGINE = {"num_blocks": 256, "max_num_seqs": 8, "dtype": "float32", "host_memory": 0, "device": "cpu"}


@pytest.fixture
def joined(nodes: Any, model: str) -> Iterator[Any]:
    """Two replicas that take a whole node each."""
    from paged_core.cluster.session import replicas

    settings = ServeSettings.load(replicas=2, ray_address=nodes.address, replica_cpus=2.0, stall=20.0)
    with replicas({**ENGINE, "model": model}, settings) as llm:
        yield llm


def texts(llm: Any, num: int = 1) -> list[str]:
    """Of `num` calls at once."""
    params = SamplingParams(max_tokens=8, temperature=0)

    async def one(i: int) -> str:
        prompt = {"prompt_token_ids": [i % 200 + 1] * 40}
        return [out.outputs[0].text async for _, out in llm.generate_all([prompt], params)][-1]

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*map(one, range(num))))

    return asyncio.run(all_of_them())


def answered(llm: Any) -> list[str] | None:
    """`texts` of 12 calls; None where one had begun on the lost node, whose processes outlive it by a moment."""
    try:
        return texts(llm, 12)
    except ApiError as error:
        if error.code != "replica_died":
            raise
        return None


def where(engine: Any) -> tuple[str, int]:
    """The node of a replica, and what its engine has done: asked in the replica."""
    import ray

    return ray.get_runtime_context().get_node_id(), engine.stats().num_generated


def nodes_of(llm: Any) -> set[str]:
    """Where replicas answer."""
    return {node for node, _ in asyncio.run(llm.ask_all(where)).values()}


def test_each_node_has_a_replica_both_work_and_a_lost_node_is_replaced(joined, nodes):
    first = nodes_of(joined)
    assert len(first) == 2
    expected = texts(joined, 12)
    assert all(num > 0 for _, num in asyncio.run(joined.ask_all(where)).values())
    lost = nodes.list_all_nodes()[-1]
    nodes.remove_node(lost, allow_graceful=False)
    wait_until(lambda: nodes_of(joined) == first - {lost.node_id}, "nobody answers on the lost node")
    wait_until(lambda: answered(joined) == expected, "whoever comes after the loss is answered")
    new = nodes.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    wait_until(lambda: nodes_of(joined) == first - {lost.node_id} | {new.node_id}, "a replica on the new node")
    assert texts(joined, 12) == expected


def test_a_replica_that_cannot_load_ends_the_command_with_its_reason(nodes, model):
    arguments = ["serve", model, "--replicas=1", "--port=0", f"--ray-address={nodes.address}"]
    done = subprocess.run(
        [*PROGRAM, *arguments, "--attn=attn_triton", "--num-blocks=64"],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=BOUND_S,
    )
    assert done.returncode == 2, done.stderr
    assert not done.stdout.startswith("ready")
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("paged-core: ")]
    assert last.startswith("paged-core: the replicas cannot start: ")
    assert "attn_triton" in last


def manifest(repository: Path) -> dict[str, Any]:
    """The one of docs/cluster.md."""
    text = (repository / "docs/cluster.md").read_text()
    (found,) = [part.split("```")[0] for part in text.split("```yaml\n")[1:]]
    return dict(yaml.safe_load(found))


def test_the_manifest_names_what_kuberay_needs(repository):
    service = manifest(repository)
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    from ray.serve.schema import ServeDeploySchema

    (application,) = ServeDeploySchema(**config).applications
    assert application.import_path == "paged_core.cluster:build"
    groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert groups[0]["maxReplicas"] >= application.args["max_replicas"]


def test_the_application_of_the_manifest_answers_behind_ray_s_proxy(nodes, model, repository):
    """Its arguments, but for a model and devices that are here."""
    import httpx
    import ray
    from ray import serve
    from ray._common.utils import import_attr

    (application,) = yaml.safe_load(manifest(repository)["spec"]["serveConfigV2"])["applications"]
    here = {"model": model, "replicas": 1, "max_replicas": 2, "replica_gpus": 0, "ingresses": 1, **ENGINE}
    built = import_attr(application["import_path"])({**application["args"], **here})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if not ray.is_initialized():
        ray.init(address=nodes.address, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
        serve.run(built, name=application["name"], route_prefix=application["route_prefix"])
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["llama"]
            body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
            whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
            events = client.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""]
            told = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
            assert "".join(choice["text"] for event in told for choice in event["choices"]) == whole
            refused = client.post("/v1/completions", json={**body, "max_tokens": 10**6})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
            assert "paged:num_requests_running" in client.get("/metrics").text
            assert client.get("/health").json() == {"status": "ok", "reason": None}
    finally:
        serve.shutdown()
        ray.shutdown()


def test_arguments_that_are_ray_s_or_unknown_are_refused(ray, model):
    from paged_core.cluster import build
    from paged_core.errors import ConfigError

    with pytest.raises(ConfigError, match="host, port and ray_address are Ray's"):
        build({"model": model, "port": 80})
    with pytest.raises(ConfigError, match="replicaz"):
        build({"model": model, "replicaz": 3})
