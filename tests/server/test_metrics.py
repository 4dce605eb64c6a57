"""GET /metrics: what is counted, in which units, and that nothing stays behind when the requests are gone."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from paged_core.server import metrics as route

VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries prefix_cache_hits num_preemptions
prompt_tokens generation_tokens iteration_tokens_total request_success request_prompt_tokens request_generation_tokens
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_inference_time_seconds cache_config_info
"""
OURS = """
num_requests_preempted time_per_output_token_seconds preemption_tokens preemption_seconds kv_blocks kv_host_blocks
kv_tail_waste_slots kv_blocks_saved kv_block_refs cow_copies prefix_cache_evictions computed_tokens engine_steps
engine_busy_seconds
"""


def samples(text):
    """Values by name and labels, model_name left out: `name{label}`."""
    found = {}
    for family in parse(text):
        for name, labels, value, *_ in family.samples:
            rest = ",".join(value for label, value in labels.items() if label != "model_name")
            found[name.removeprefix("paged:") + (f"{{{rest}}}" if rest else "")] = value
    return found


def scrape(server):
    response = server.get("/metrics")
    assert response.status_code == 200, response.text
    return samples(response.text)


async def ascrape(server):
    return samples((await server.arequest("GET", "/metrics")).text)


async def scrape_between_steps(server):
    """As few steps as a scrape needs: it is answered between two of them."""
    scraping = asyncio.ensure_future(ascrape(server))
    while not scraping.done():
        if server.gate.waiting.is_set():
            server.gate.allow(1)
        await asyncio.sleep(0.005)
    return await scraping


def test_names_are_vllm_s_with_our_prefix_and_nothing_is_unknown(house):
    text = house().get("/metrics").text
    names = {family.name for family in parse(text) if family.name.startswith("paged:")}
    assert names == {f"paged:{name}" for name in (VLLM + OURS).split()}
    for family in parse(text):
        for sample in family.samples:
            assert family.name.startswith("process_") or sample.labels["model_name"] == "test"


def test_a_fresh_server_has_all_series_at_zero(house):
    found = scrape(house(shape={"num_blocks": 100}))
    del found["kv_blocks{free}"], found["kv_host_blocks{free}"]
    counted = {name: value for name, value in found.items() if not name.startswith(("process_", "cache_config"))}
    assert set(counted.values()) == {0}
    assert "num_preemptions_total{swap}" in counted
    assert "request_success_total{abort}" in counted


@pytest.mark.parametrize(
    ("body", "requests", "answers"),
    [
        ({"prompt": "abc", "n": 2}, 1, 2),
        ({"prompt": "abc", "use_beam_search": True, "beam_width": 3}, 1, 1),
        ({"prompt": ["abc", "xyz"]}, 2, 2),
    ],
)
def test_x03_what_counts_is_the_prompt(house, body, requests, answers):
    server = house()
    response = server.post("/v1/completions", {**body, "max_tokens": 3, "ignore_eos": True})
    assert len(response.json()["choices"]) == answers
    found = scrape(server)
    ended = sum(value for name, value in found.items() if name.startswith("request_success_total"))
    assert ended == requests
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"):
        assert found[f"{name}_count"] == requests
    assert found["prompt_tokens_total"] == found["request_prompt_tokens_sum"] == 3 * requests


def test_tokens_and_times_of_one_answer(house):
    server = house(script=list("hello"))
    answer = server.post("/v1/completions", {"prompt": "four", "max_tokens": 5, "temperature": 0}).json()
    assert answer["choices"][0]["text"] == "hello"
    found = scrape(server)
    assert found["request_success_total{length}"] == 1
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (4, 5)
    assert (found["computed_tokens_total"], found["engine_steps_total"]) == (8, 5)
    assert (found["iteration_tokens_total_count"], found["iteration_tokens_total_sum"]) == (5, 8)
    assert found["inter_token_latency_seconds_count"] == 4
    assert found["inter_token_latency_seconds_sum"] == pytest.approx(found["request_decode_time_seconds_sum"])
    assert found["time_per_output_token_seconds_sum"] == pytest.approx(found["request_decode_time_seconds_sum"] / 4)
    parts = [found[f"request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(found["e2e_request_latency_seconds_sum"])
    assert parts[0] + parts[1] == pytest.approx(found["time_to_first_token_seconds_sum"])
    assert found["request_inference_time_seconds_sum"] == pytest.approx(parts[1] + parts[2])


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_counts_the_same_streamed_or_not(house, stream):
    server = house(script=list("hello"))
    server.post("/v1/completions", {"prompt": "four", "max_tokens": 5, "temperature": 0, "stream": stream})
    found = scrape(server)
    counts = {name: value for name, value in found.items() if name.endswith("_count")}
    assert counts.pop("inter_token_latency_seconds_count") == 4
    assert counts.pop("iteration_tokens_total_count") == 5
    assert set(counts.values()) == {1}


def test_sharing_is_told_block_by_block(house):
    server = house(script=["a"] * 200)
    body = {"prompt": "x" * 10, "n": 3, "max_tokens": 200, "temperature": 0.0, "ignore_eos": True, "stream": True}

    async def run():
        server.gate.shut()
        async with server.call("/v1/completions", body) as call:
            found = await scrape_between_steps(server)
            while found["generation_tokens_total"] < 6:  # all three have forked and written
                found = await scrape_between_steps(server)
            assert not call.task.done()
            server.gate.open()
            return found

    found = asyncio.run(run())
    assert found["num_requests_running"] == 1
    assert found["kv_blocks{shared}"] == found["kv_block_refs{3}"] == 2  # the prompt's two full blocks, of four tokens
    assert found["kv_blocks_saved"] == 4
    assert found["cow_copies_total"] == 2  # of three that write behind ten tokens the last one need not copy
    assert sum(found[f"kv_blocks{{{state}}}"] for state in ("free", "cached", "private", "shared")) == 256
    assert found["kv_cache_usage_perc"] * 256 == found["kv_blocks{private}"] + 2
    length = 10 + found["generation_tokens_total"] / 3 - 1  # the last token of each has no keys and values yet
    assert found["kv_tail_waste_slots"] == 3 * (-length % 4)


def test_prefix_hits_are_counted_in_tokens(house):
    server = house(shape={"block_size": 4})
    for _ in range(2):
        server.post("/v1/completions", {"prompt": "p" * 9, "max_tokens": 1})
    found = scrape(server)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (18, 8)
    assert found["kv_blocks{cached}"] == 2


def test_preemptions_are_counted_by_kind_with_their_cost(house):
    server = house(shape={"num_blocks": 12, "num_host_blocks": 0, "max_model_len": 48, "prefix_cache": False})
    body = {"prompt": ["a" * 8, "b" * 8], "max_tokens": 24, "ignore_eos": True}
    assert server.post("/v1/completions", body).status_code == 200
    found = scrape(server)
    assert found["num_preemptions_total{recompute}"] >= 1
    assert found["preemption_tokens_total{recompute}"] >= 8
    assert found["preemption_seconds_total{recompute}"] > 0
    assert found["num_preemptions_total{swap}"] == found["preemption_tokens_total{swap}"] == 0
    assert found["num_requests_preempted"] == 0


def test_x01_after_ten_cancelled_streams_and_no_more_traffic_nothing_is_held(house):
    server = house(shape={"num_blocks": 64, "max_num_seqs": 4})
    body = {"prompt": "abcdefgh", "max_tokens": 200, "ignore_eos": True, "stream": True}

    async def run():
        server.gate.shut()
        async with asyncio.TaskGroup() as group:
            calls = [server.call("/v1/completions", body) for _ in range(10)]
            entered = [await call.__aenter__() for call in calls]
            inside = 0
            while inside < 10:
                found = await scrape_between_steps(server)
                inside = found["num_requests_running"] + found["num_requests_waiting"]
            for call in entered:
                group.create_task(call.leave())
            server.gate.open()
        await server.idle()
        return await ascrape(server)

    found = asyncio.run(run())
    assert found["request_success_total{abort}"] == 10
    for name in ("num_requests_running", "num_requests_waiting", "num_requests_preempted", "kv_cache_usage_perc"):
        assert found[name] == 0
    assert found["kv_blocks{private}"] == found["kv_blocks{shared}"] == found["kv_tail_waste_slots"] == 0
    assert found["kv_blocks{free}"] + found["kv_blocks{cached}"] == 64
    assert found["kv_host_blocks{used}"] == 0


def test_two_servers_of_one_process_count_apart(house):
    busy, idle = house(), house(served_model_name=("other",))
    busy.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True})
    assert scrape(busy)["generation_tokens_total"] == 2
    assert scrape(idle)["generation_tokens_total"] == 0
    assert 'model_name="other"' in idle.get("/metrics").text


def test_what_the_engine_runs_with_is_told(house):
    text = house(shape={"block_size": 8, "prefix_cache": False}).get("/metrics").text
    (config,) = next(family.samples for family in parse(text) if family.name == "paged:cache_config_info")
    assert config.value == 1
    assert config.labels.items() >= {"block_size": "8", "prefix_cache": "False", "plugin_alloc": "alloc_cow"}.items()


def test_openmetrics_on_demand(house):
    response = house().get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert "paged:prompt_tokens" in {family.name for family in parse_openmetrics(response.text)}
    assert house().get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_metrics_need_the_key(house):
    server = house(api_key=("secret",))
    assert server.get("/metrics").status_code == 401
    assert server.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_scrape_does_not_wait_for_an_engine_that_hangs(house, monkeypatch):
    monkeypatch.setattr(route, "PATIENCE_S", 0.05)
    server = house()

    async def run():
        server.gate.shut()
        async with server.call("/v1/completions", {"prompt": "a", "max_tokens": 1}):
            while not server.gate.waiting.is_set():
                await asyncio.sleep(0.005)
            response = await server.arequest("GET", "/metrics")
            server.gate.open()
            return response

    response = asyncio.run(run())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_busy"


def test_every_metric_of_the_dashboard_exists_and_every_metric_of_ours_is_in_the_manual(house, repository):
    series = {sample.name for family in parse(house().get("/metrics").text) for sample in family.samples}
    dashboard = json.loads((repository / "docs" / "grafana.json").read_text())
    exprs = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    used = {name for expr in exprs for name in re.findall(r"paged:\w+|process_\w+", expr)}
    assert len(exprs) >= 20
    assert used <= series
    manual = (repository / "docs" / "serve.md").read_text()
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in series if name.startswith("paged:")}
    assert {name for name in stems if f"`{name}" not in manual} == set()
    drawn = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    spared = {"paged:request_time_per_output_token_seconds", "paged:request_inference_time_seconds"}
    assert stems - drawn <= spared


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_units(repository):
    dashboard = json.loads((repository / "docs" / "grafana.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert all(
                'model_name=~"$model"' in target["expr"] or "process_" in target["expr"] for target in panel["targets"]
            )
