"""Keys: every path but those named as public refuses whoever has none (case Z01)."""

from __future__ import annotations

import asyncio

import pytest

KEY = "secret-1"
OTHER = "secret-2"
PUBLIC = {"/health", "/ready"}
COMPLETIONS = "/v1/completions"
PROMPT = {"prompt": "a" * 16, "temperature": 0, "max_tokens": 2}


@pytest.fixture
def server(house):
    return house(["Hi"], api_key=(KEY, OTHER), docs=True)


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def routes(router):
    """(method, path) of everything that the app answers, whoever added it."""
    pairs = []
    for route in router.routes:
        if hasattr(route, "original_router"):
            pairs += routes(route.original_router)
        else:
            methods = sorted(getattr(route, "methods", None) or {"GET"})
            pairs += [(method, route.path.replace("{model:path}", "test")) for method in methods]
    return pairs


def status_of(app, method, path):
    """Asked without a client that would tidy the path up."""
    sent = []

    async def main():
        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"}}
        scope |= {"client": ("127.0.0.1", 1), "server": ("test", 80)}
        await app(scope, receive, send)

    asyncio.run(main())
    return sent[0]["status"]


def test_z01_no_route_but_the_public_ones_answers_without_a_key(server):
    found = routes(server.app)
    assert ("POST", COMPLETIONS) in found
    open_ones = set()
    for method, path in [*found, ("GET", "/nothing"), ("OPTIONS", COMPLETIONS), ("HEAD", "/v1/models")]:
        response = asyncio.run(server.arequest(method, path))
        if response.status_code == 401:
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert response.json()["error"]["code"] == "invalid_api_key"
        else:
            open_ones.add(path)
    static = {path for path in open_ones if path == "/ui" or path.startswith("/ui/")}
    assert open_ones - static == PUBLIC


@pytest.mark.parametrize(
    "path",
    [
        "//health",
        "/health/",
        "/HEALTH",
        "/health/../v1/models",
        "/./health",
        "/%68ealth/",
        "/health;x",
        "/health%00",
        "/v1//models",
        "/V1/models",
        "/v1/models/",
        "/v1/%6dodels",
        "/metrics/",
        "/openapi.json",
        "/docs",
        "/ui/../v1/models",
    ],
)
def test_z01_no_other_spelling_of_a_path_gets_in(server, path):
    for method in ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH"):
        assert status_of(server.app, method, path) == 401, (method, path)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_public_paths_are_public_to_readers_only(server, method):
    assert asyncio.run(server.arequest(method, "/health")).status_code == 401


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic secret-1",
        b"secret-1",
        b"Bearer secret-1x",
        b"Bearersecret-1",
        b"Bearer secret-1 secret-2",
        b"Bearer \xff\xfe",
        "Bearer sécret".encode(),
        b"Bearer " + b"x" * 5000,
        b"Bearer SECRET-1",
    ],
)
def test_z01_wrong_headers_are_refused(server, value):
    headers = [] if value is None else [(b"authorization", value)]
    assert asyncio.run(server.arequest("GET", "/v1/models", headers=headers)).status_code == 401


def test_z01_two_headers_are_refused_and_the_scheme_s_case_does_not_matter(server):
    two = [(b"authorization", b"Bearer secret-1"), (b"authorization", b"Bearer secret-1")]
    assert asyncio.run(server.arequest("GET", "/v1/models", headers=two)).status_code == 401
    for value in ("Bearer secret-1", "bearer secret-2", "BEARER  secret-1 "):
        assert server.get("/v1/models", headers={"Authorization": value}).status_code == 200


def test_every_key_is_compared_in_constant_time(server, monkeypatch):
    compared = []
    real = __import__("hmac").compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    server.get("/v1/models", headers=bearer(KEY))
    server.get("/v1/models", headers=bearer("x"))
    assert compared == [(32, 32)] * 4, "both keys, whichever matched, at one length"


def test_a_websocket_without_a_key_is_closed(server):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/ws", "headers": [], "subprotocols": []}
    asyncio.run(server.app(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_without_keys_everybody_is_answered(house):
    assert house(["Hi"]).get("/v1/models").status_code == 200


def cached(server, key=None, salt=None):
    body = {**PROMPT, "cache_salt": salt} if salt is not None else PROMPT
    response = server.post(COMPLETIONS, body, headers=bearer(key) if key else {})
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a17_prompts_are_shared_under_one_salt_only(house):
    server = house(["Hi"])
    assert [cached(server, salt=salt) for salt in ("s1", "s2", None, "s1")][:3] == [0, 0, 0]
    assert cached(server, salt="s1") > 0


def test_a17_keys_have_caches_of_their_own_whatever_salt_a_caller_sends(house):
    server = house(["Hi"], api_key=(KEY, OTHER), isolate_keys=True)
    assert cached(server, KEY) == 0
    assert cached(server, KEY) > 0
    assert cached(server, OTHER) == 0
    from paged_core.server.auth import _digest

    mine = server.server.salt(_digest(KEY.encode()).hex(), None)
    assert cached(server, OTHER, mine) == 0, "a caller who knows another's salt reaches it"
    assert cached(server, KEY, "more") == 0
    assert cached(server, KEY, "more") > 0


def test_keys_share_a_cache_unless_they_are_to_be_isolated(house):
    server = house(["Hi"], api_key=(KEY, OTHER))
    assert cached(server, KEY) == 0
    assert cached(server, OTHER) > 0


def test_pages_of_other_origins_may_call_only_when_they_are_named(house):
    page = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    closed = house(["Hi"], api_key=(KEY,))
    assert asyncio.run(closed.arequest("OPTIONS", COMPLETIONS, headers=page)).status_code == 401
    assert "access-control-allow-origin" not in closed.get("/health", headers=page).headers
    opened = house(["Hi"], api_key=(KEY,), allow_origin=("https://page.example",))
    asked = asyncio.run(opened.arequest("OPTIONS", COMPLETIONS, headers=page))
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://page.example"
    refused = opened.post(COMPLETIONS, PROMPT, headers={"Origin": "https://page.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example", "the page may read why"
    other = asyncio.run(opened.arequest("OPTIONS", COMPLETIONS, headers={**page, "Origin": "https://other.example"}))
    assert "access-control-allow-origin" not in other.headers
