"""What the server says of itself, and its description in OpenAPI's form."""

from __future__ import annotations

import asyncio
import json

import pytest

from paged_core import __version__


def test_tokens_of_text_and_back(house):
    server = house()
    body = server.post("/tokenize", {"prompt": "ab\u00e9", "return_token_strs": True}).json()
    assert body["tokens"] == list("ab\u00e9".encode())
    assert (body["count"], body["max_model_len"]) == (4, 256)
    assert body["token_strs"] == ["a", "b", "bytes:\\xc3", "bytes:\\xa9"]
    assert server.post("/detokenize", {"tokens": body["tokens"]}).json() == {"prompt": "ab\u00e9"}
    assert server.post("/detokenize", {"tokens": [97, 256]}).json() == {"prompt": "a</s>"}
    assert server.post("/detokenize", {"tokens": [97, 256], "skip_special_tokens": True}).json() == {"prompt": "a"}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_tokens_of_messages_are_those_of_the_chat(house):
    server = house()
    messages = [{"role": "user", "content": "Hello"}]
    tokens = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert bytes(tokens).decode() == "user: Hello\nassistant: "
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert chat.json()["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize("tokens", [[-1], [320], [2**70], [1.0], ["a"], None, "a"])
def test_v06_ids_that_are_none_are_refused(house, tokens):
    response = house().post("/detokenize", {"tokens": tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tokens"


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"messages": []}, {"messages": [{"role": "x"}]}])
def test_tokenize_takes_one_of_prompt_and_messages(house, body):
    assert house().post("/tokenize", body).status_code == 400


def test_models_are_listed_under_all_their_names(house):
    server = house(served_model_name=("org/model", "short"))
    listed = server.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["org/model", "short"]
    assert server.get("/v1/models/org/model").json() == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == 256


def test_health_readiness_and_version(house):
    server = house()
    assert server.get("/health").json()["status"] == "ok"
    assert server.get("/ready").status_code == 200
    for path in ("/health", "/ready"):
        assert asyncio.run(server.arequest("HEAD", path)).status_code == 200
    assert server.get("/version").json() == {"version": __version__}


def test_while_draining_only_the_state_is_told(house):
    server = house()
    server.server.phase.draining = True
    assert server.get("/health").status_code == 200
    assert server.get("/ready").status_code == 503
    refused = server.post("/v1/completions", {"prompt": "a"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) > 0
    assert server.get("/v1/models").status_code == 503


def test_the_description_promises_no_422_and_knows_both_forms_of_an_answer(house):
    response = house().get("/openapi.json")
    assert response.status_code == 200
    described = response.json()
    assert "422" not in json.dumps(described["paths"])
    for path in ("/v1/completions", "/v1/chat/completions"):
        responses = described["paths"][path]["post"]["responses"]
        assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
        assert responses["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("ErrorBody")
    assert {"/tokenize", "/detokenize", "/health", "/ready", "/version", "/v1/models"} <= set(described["paths"])


def test_interactive_pages_are_there_on_demand_only(house):
    assert house().get("/docs").status_code == 404
    assert house(docs=True).get("/docs").status_code == 200
