"""What a real server's own parsing of a request line makes of a path: no spelling of it gets in without a key (Z01)."""

from __future__ import annotations

import pytest

PUBLIC = ("/health", "/ready", "/ui", "/ui/blocks", "/ui/style.css", "/ui/chat.js", "/ui/icon.svg")
KEYED = ("/v1/models", "/v1/completions", "/metrics", "/openapi.json", "/version", "/ui/data/pool", "/tokenize")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND")


def spellings(path):
    """Ways to write a path, and ways to hide it behind one that is open."""
    first = path[1:2]
    yield from (path, "/" + path, path + "/", path.upper(), path + "?x=/health", path + "#/health", path + ";/health")
    yield path.replace(first, f"%{ord(first):02x}", 1)
    yield path.replace("/", "/./")
    yield from (
        f"/health/..{path}",
        f"/health/%2e%2e{path}",
        f"/health%2f..{path}",
        f"/ui/..{path}",
        f"/ui/%2e%2e{path}",
    )
    yield from (f"/ui/..\\{path[1:]}", f"/ui%00{path}", f"/health%0d%0a{path}", f"/ui/style.css/..{path}")
    yield from (f"http://x{path}", f"http://x/health/..{path}", f"//health{path}", f"{path}%20", f"/%2e{path}")


def status_of(target, method, path, *headers):
    lines = "".join(f"{header}\r\n" for header in ("Host: x", "Connection: close", *headers))
    answer = target.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
    return int(answer[9:12] or 0), answer


@pytest.mark.parametrize("path", KEYED)
def test_z01_no_spelling_of_a_request_line_gets_in(target, path):
    for spelling in spellings(path):
        for method in ("GET", "POST", "OPTIONS"):
            status, answer = status_of(target, method, spelling)
            assert status in (401, 400, 0), (method, spelling, answer)
            assert b'"object"' not in answer


def test_z01_no_method_gets_in_and_an_upgrade_does_not_help(target):
    upgrade = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    for path in KEYED:
        for method in METHODS:
            assert status_of(target, method, path)[0] in (401, 400), (method, path)
        assert status_of(target, "GET", path, "Connection: Upgrade", *upgrade)[0] == 401
        assert status_of(target, "GET", path, "X-Original-URL: /health", "X-HTTP-Method-Override: HEAD")[0] == 401


def test_z01_static_files_are_open_to_readers_and_hold_no_data(target):
    for path in PUBLIC:
        assert status_of(target, "GET", path)[0] == 200
        assert status_of(target, "HEAD", path)[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert status_of(target, method, path)[0] == 401


@pytest.mark.parametrize(
    "header",
    [
        "Authorization:",
        "Authorization: Bearer",
        "Authorization: Bearer \t",
        "Authorization: Bearer secret-ke",
        "Authorization: Bearer secret-key,secret-key",
        "Authorization: Basic c2VjcmV0LWtleQ==",
        "Authorization: Bearer s\xe9cret",
        "Authorization: Bearer secret-key\r\nAuthorization: Bearer secret-key",
        "Authorization: Bearer x\r\nAuthorization: Bearer secret-key",
        "Authorization: Bearer\r\n secret-key",
        "Authorization : Bearer secret-key",
        "X-Api-Key: secret-key",
        "Api-Key: secret-key",
        "Cookie: Authorization=Bearer secret-key",
        "Authorization: Bearer " + "x" * 30_000,
    ],
)
def test_z01_header_forms_that_are_no_key(target, header):
    assert status_of(target, "GET", "/v1/models", header)[0] in (401, 400)
    assert status_of(target, "GET", "/v1/models?api_key=secret-key", header)[0] in (401, 400)


def test_z01_the_key_opens_with_any_case_of_the_scheme(target):
    for header in (
        "authorization: bearer secret-key",
        "AUTHORIZATION: BEARER secret-key",
        "Authorization:Bearer secret-key",
    ):
        assert status_of(target, "GET", "/v1/models", header)[0] == 200
