"""The pages' files are open and can do little; their data need the key and tell the pool as it is."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from importlib.resources import files

import pytest

from paged_core.server.ui import routes
from paged_core.server.ui.routes import PUBLIC

KEY = {"Authorization": "Bearer secret"}
POOL = "/ui/data/pool"
STATIC = files("paged_core.server.ui") / "static"


@pytest.fixture
def server(house):
    return house(api_key=("secret",))


@pytest.mark.parametrize("path", PUBLIC)
def test_a_page_is_open_strict_about_what_it_loads_and_never_sniffed(server, path):
    response = server.get(path)
    assert response.status_code == 200
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{what}-src"] for what in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    head = asyncio.run(server.arequest("HEAD", path))
    assert (head.status_code, head.content) == (200, b"")


def test_every_file_of_the_package_is_served_and_nothing_else():
    assert len(list(STATIC.iterdir())) == len(PUBLIC)


def test_types_are_those_that_browsers_ask_for(server):
    kinds = {path: server.get(path).headers["content-type"].partition(";")[0] for path in PUBLIC}
    assert kinds["/ui"] == kinds["/ui/blocks"] == "text/html"
    assert {kind for path, kind in kinds.items() if path.endswith(".js")} == {"text/javascript"}
    assert (kinds["/ui/style.css"], kinds["/ui/icon.svg"]) == ("text/css", "image/svg+xml")


@pytest.mark.parametrize("name", [file.name for file in STATIC.iterdir()])
def test_nothing_is_inline_nothing_comes_from_elsewhere_and_no_text_becomes_html(name):
    text = (STATIC / name).read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage", text
    )


def test_data_need_the_key_like_everything_else(server):
    assert server.get(POOL).status_code == 401
    assert server.get(POOL, headers={"Authorization": "Bearer other"}).status_code == 401
    response = server.get(POOL, headers=KEY)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("query", ["block=-1", "block=a", "block=1.5", "request=" + "r" * 300])
def test_a_bad_question_is_400(server, query):
    response = server.get(f"{POOL}?{query}", headers=KEY)
    assert response.status_code == 400
    assert "error" in response.json()


@pytest.mark.parametrize("query", ["block=99999999999999999999", "request=nobody", "block=3&request=x", "other=1"])
def test_what_nobody_holds_has_no_holders(server, query):
    body = server.get(f"{POOL}?{query}", headers=KEY).json()
    assert (body["holders"], body["held"]) == ([], [])


def test_the_pool_of_a_running_request(server):
    prompt = [*range(40)]

    async def run():
        server.gate.shut()
        body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "stream": True}
        async with server.call("/v1/completions", body, **KEY) as call:
            await asyncio.to_thread(server.gate.waiting.wait, 30)
            asked = asyncio.ensure_future(server.arequest("GET", f"{POOL}?block=0", headers=KEY))
            while server.llm._commands.empty():
                await asyncio.sleep(0.001)
            server.gate.allow(1)  # the question is answered after this step
            looked = (await asked).json()
            server.gate.open()
            await call.until(lambda call: call.text.endswith("data: [DONE]\n\n"))
        return looked

    looked = asyncio.run(run())
    json.dumps(looked, allow_nan=False)
    refs = base64.b64decode(looked["blocks"])
    assert len(refs) == looked["pool"]["total"] == 256
    in_use = [block for block, byte in enumerate(refs) if byte & 127]
    assert len(in_use) == looked["pool"]["total"] - looked["pool"]["free"] == 10
    (line,) = looked["running"]
    assert (line["num_prompt"], line["num_blocks"]) == (40, 10)
    assert looked["counts"] == {"running": 1, "waiting": 0, "preempted": 0}
    (holder,) = looked["holders"]
    assert holder == {"request": line["id"], "branch": 0, "depth": in_use.index(0), "num_tokens": 4}
    assert looked["held"] == in_use


def test_data_end_with_the_engine(server):
    server.llm.shutdown()
    response = server.get(POOL, headers=KEY)
    assert response.status_code in (500, 503)
    assert response.json()["error"]["message"]


def test_an_engine_that_does_not_answer_is_told_as_busy(server, monkeypatch):
    monkeypatch.setattr(routes, "PATIENCE_S", 0.05)

    async def run():
        server.gate.shut()
        async with server.call("/v1/completions", {"prompt": [1, 2], "max_tokens": 2}, **KEY):
            await asyncio.to_thread(server.gate.waiting.wait, 30)
            response = await server.arequest("GET", POOL, headers=KEY)
            server.gate.open()
        return response

    response = asyncio.run(run())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_busy")
