"""Every answer that is an error has OpenAI's form, a status that fits, and harms nobody else."""

from __future__ import annotations

import json

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ROUTES = [COMPLETIONS, CHAT, "/tokenize", "/detokenize"]
JSON = {"content-type": "application/json"}
GOOD = {"prompt": "abc", "temperature": 0, "max_tokens": 3}


def error(response, status=400):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.fixture
def server(house):
    return house(["Hi"])


def raw(server, path, content, headers=JSON):
    return server.post(path, content=content, headers=headers)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "content",
    [b"[]", b"null", b"3", b'"x"', b'{"prompt": ', b"", b"\xff\xfe", b"{}", b'{"prompt": "a",}', b"{'prompt': 'a'}"],
)
def test_v06_bodies_that_are_none_are_refused(server, path, content):
    error(raw(server, path, content))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", None])
def test_v06_a_body_of_another_type_is_refused(server, path, kind):
    error(raw(server, path, json.dumps(GOOD), {"content-type": kind} if kind else {}), 415)


def test_other_names_for_json_are_json(server):
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"):
        assert raw(server, COMPLETIONS, json.dumps(GOOD), {"content-type": kind}).status_code == 200


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("temperature", "1e6"),
        ("temperature", "-1"),
        ("temperature", '"0.5"'),
        ("temperature", "true"),
        ("top_p", "-1"),
        ("top_p", "0"),
        ("top_p", "1.5"),
        ("top_k", "-2"),
        ("top_k", "1.5"),
        ("min_p", "2"),
        ("repetition_penalty", "0"),
        ("presence_penalty", "1e9"),
        ("frequency_penalty", "-1e9"),
        ("n", "0"),
        ("n", "1000000000"),
        ("best_of", "1000000000"),
        ("seed", "1.5"),
        ("seed", "1" + "0" * 40),
        ("stop", "[1]"),
        ("stop", '""'),
        ("stop", "[[]]"),
        ("min_tokens", "-1"),
        ("priority", "1" + "0" * 30),
        ("cache_salt", "5"),
        ("timeout", "0"),
        ("timeout", "-1"),
        ("timeout", "1e300"),
        ("truncate_prompt_tokens", "0"),
        ("stop_token_ids", "[320]"),
        ("allowed_token_ids", "[]"),
        ("bad_words", "[3]"),
        ("stream", '"yes"'),
        ("use_beam_search", "1"),
        ("structured_outputs", "[]"),
        ("repetition_detection", '{"a": 1}'),
    ],
)
def test_m05_values_out_of_range_name_their_field(server, field, text):
    for stream in ("false", "true"):
        body = f'{{"prompt": "abc", "stream": {stream}, "{field}": {text}}}'
        assert error(raw(server, COMPLETIONS, body))["param"] == field
    assert server.post(COMPLETIONS, GOOD).status_code == 200


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "unknown", "logit_bias"])
def test_m05_numbers_that_json_has_not_are_refused_wherever_they_stand(server, text, field):
    value = f'{{"97": {text}}}' if field == "logit_bias" else text
    error(raw(server, COMPLETIONS, f'{{"prompt": "abc", "{field}": {value}}}'))


@pytest.mark.parametrize("path", ROUTES)
def test_z08_bottomless_nesting_is_refused(server, path):
    for depth in (200, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            body = '{"prompt": "a", "x": ' + opening * depth + "1" + closing * depth + "}"
            error(raw(server, path, body))
    error(raw(server, path, "[" * 100_000))


def test_nesting_that_schemas_need_is_not_refused(server):
    body = json.dumps({**GOOD, "metadata": json.loads("[" * 60 + "]" * 60)})
    assert raw(server, COMPLETIONS, body).status_code == 200


@pytest.mark.parametrize("escape", [r"\ud83d", r"\udc00", r"\ud83dx", r"\udc00\ud83d"])
def test_v08_half_of_a_surrogate_pair_is_refused_everywhere(server, escape):
    for stream in ("false", "true"):
        for body in (
            f'{{"prompt": "{escape}", "stream": {stream}}}',
            f'{{"prompt": ["a", "{escape}"], "stream": {stream}}}',
            f'{{"prompt": "a", "stop": "{escape}", "stream": {stream}}}',
            f'{{"prompt": "a", "model": "{escape}", "stream": {stream}}}',
            f'{{"prompt": "a", "{escape}": 1, "stream": {stream}}}',
        ):
            error(raw(server, COMPLETIONS, body))
        chat = f'{{"messages": [{{"role": "user", "content": "{escape}"}}], "stream": {stream}}}'
        error(raw(server, CHAT, chat))
    error(raw(server, "/tokenize", f'{{"prompt": "{escape}"}}'))


def test_v08_whole_pairs_and_nul_are_text(server):
    for text in (r"\ud83d\ude00", r"a\u0000b", r"\\ud83d"):
        assert raw(server, COMPLETIONS, f'{{"prompt": "{text}", "max_tokens": 2}}').status_code == 200
    count = server.post("/tokenize", {"prompt": "a\0b"}).json()["count"]
    assert count == 3


@pytest.mark.parametrize("path", ROUTES)
def test_a_model_that_is_not_served_is_404(house, path):
    server = house(["Hi"], served_model_name=("mine", "other"))
    bodies = {
        COMPLETIONS: GOOD,
        CHAT: {"messages": [{"role": "user", "content": "x"}]},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [97]},
    }
    for wrong in ("test", "", "mine/../other", "x" * 10_000):
        found = error(server.post(path, {**bodies[path], "model": wrong}), 404)
        assert found["code"] == "model_not_found"
        assert found["param"] == "model"
        assert len(found["message"]) < 400
    for name in ("mine", "other", None):
        assert server.post(path, {**bodies[path], "model": name}).status_code == 200
    assert server.post(COMPLETIONS, {**GOOD, "model": "other"}).json()["model"] == "other"


def test_unknown_paths_and_methods_have_the_error_object(server):
    assert error(server.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error(server.get("/v1/models/nothing"), 404)["code"] == "model_not_found"
    response = server.get(COMPLETIONS)
    assert error(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert error(server.get(COMPLETIONS + "/"), 404), "no redirects: a client would lose its body on the way"


@pytest.mark.parametrize(
    ("name", "value"),
    [("stop", ["a"] * 100_000), ("prompt", ["a"] * 100_000), ("logit_bias", {str(i): 1 for i in range(100_000)})],
)
def test_z08_long_lists_are_refused_before_anything_is_built_from_them(server, name, value):
    assert error(server.post(COMPLETIONS, {**GOOD, name: value}))["param"] == name
    assert server.engine.stats().num_steps == 0


PARTS = 140_000


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt": [' + ",".join(['"a"'] * PARTS) + "]}",
        '{"prompt": [' + ",".join(["[1]"] * PARTS) + "]}",
        '{"prompt": "a", "logit_bias": {' + ",".join(f'"{i}":1' for i in range(PARTS)) + "}}",
        '{"prompt": "a", "unknown": [' + ",".join(["{}"] * PARTS) + "]}",
    ],
)
def test_z08_a_body_of_very_many_parts_is_refused_before_it_is_checked(server, body):
    assert "texts, lists and objects" in error(raw(server, COMPLETIONS, body))["message"]


def test_z08_of_a_long_list_of_wrong_values_the_first_is_told(server):
    body = '{"prompt": [' + ",".join(["null"] * 500_000) + "]}"
    assert error(raw(server, COMPLETIONS, body))["param"] == "prompt"


def test_texts_and_numbers_are_not_parts_worth_counting(server):
    many = json.dumps({"prompt": list(range(97, 100)) * 50_000})
    assert "max_model_len" in error(raw(server, COMPLETIONS, many))["message"]
    quoted = json.dumps({"prompt": '"[{' * 100_000})
    assert "max_model_len" in error(raw(server, COMPLETIONS, quoted))["message"]


def test_z08_a_schema_larger_than_allowed_is_refused(house):
    server = house(["Hi"], max_schema=100)
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20)}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert "at most 100" in error(server.post(COMPLETIONS, {**GOOD, "response_format": form}))["message"]
    assert "at most 100" in error(server.post(COMPLETIONS, {**GOOD, "structured_outputs": {"json": schema}}))["message"]


def test_a_defect_is_a_500_that_tells_strangers_nothing(server, monkeypatch):
    monkeypatch.setattr("paged_core.server.completions.sampling_params", lambda *a, **k: 1 / 0)
    found = error(server.post(COMPLETIONS, GOOD), 500)
    assert "division" not in json.dumps(found)
    assert found["type"] == "server_error"


def test_every_answer_names_its_request(server):
    sent = server.post(COMPLETIONS, GOOD, headers={"X-Request-Id": "mine-1"})
    assert sent.headers["x-request-id"] == "mine-1"
    assert server.get("/nothing", headers={"X-Request-Id": "mine-2"}).headers["x-request-id"] == "mine-2"
    made = {server.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for wrong in ("a b", "x" * 200, "\xe9"):
        echoed = server.get("/health", headers={"X-Request-Id": wrong.encode("latin-1")}).headers["x-request-id"]
        assert echoed != wrong
