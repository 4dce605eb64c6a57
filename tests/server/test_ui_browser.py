"""Both pages in a headless Chromium; the model writes what a test says, as slowly as there is something to see."""

from __future__ import annotations

import base64
import shutil
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on the PATH (Debian's package: chromium)")

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
FLAGS += ("--disable-component-update", "--disable-sync")
KEY = "secret"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SLOW_S = 0.02  # of a step of a ticking engine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for the module: Playwright's loop, while it is there, keeps others from `asyncio.run` in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A fresh page. At the end: no script failed, nothing was asked of any other server."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    failures: list[str] = []
    hosts: set[str] = set()
    opened = context.new_page()
    opened.on("pageerror", lambda error: failures.append(str(error)))
    opened.on("request", lambda request: hosts.add(httpx.URL(request.url).host))
    opened.set_default_timeout(30_000)
    yield opened
    context.close()
    assert failures == []
    assert hosts <= {"127.0.0.1"}


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """The app on a port of its own, from a thread of its own."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    process = uvicorn.Server(config)
    thread = threading.Thread(target=process.run)
    thread.start()
    try:
        while not process.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{process.servers[0].sockets[0].getsockname()[1]}"
    finally:
        process.should_exit = True
        thread.join()


@contextmanager
def ticking(gate: Any) -> Iterator[None]:
    """The engine takes a step every `SLOW_S`, so that there is something to see."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(SLOW_S):
            if gate.waiting.is_set():  # no leave is saved up while there is nothing to do
                gate.allow(1)

    gate.shut()
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        gate.open()


@pytest.fixture
def site(house: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Serve a house; returns it with its URL. Keywords as for `house`."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def build(*arguments: Any, slow: bool = False, shape: Any = None, **how: Any) -> tuple[Any, str]:
            made = house(*arguments, shape={"max_model_len": 512, **(shape or {})}, **how)
            if slow:
                stack.enter_context(ticking(made.gate))
            return made, stack.enter_context(listening(made.app))

        yield build


def say(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Any) -> str:
    """The text of the last answer, once it has ended. Fails with what the page complains of."""
    page.wait_for_selector("#send:not([disabled])")
    assert page.is_hidden("#error"), page.text_content("#error")
    return page.text_content("article.assistant:last-of-type .text")


def open_chat(page: Any, url: str) -> None:
    page.goto(f"{url}/ui")
    page.wait_for_selector("#model option", state="attached")


class TestChat:
    def test_an_answer_comes_with_its_figures(self, page, site):
        made, url = site(["Hello", ", ", "world"])
        open_chat(page, url)
        made.gate.shut()
        say(page, "Hi")
        made.gate.allow(1)
        page.wait_for_selector("article.assistant .text:not(:empty)")
        made.gate.open()  # later than the first token, or there would be no speed to tell
        assert answered(page) == "Hello, world"
        note = page.text_content("article.assistant .note")
        assert "TTFT" in note
        assert "+ 4 tokens" in note
        assert "tok/s" in note
        assert note.endswith("stop")

    def test_what_was_said_is_sent_again_with_the_system_prompt_and_only_what_was_filled_in(self, page, site):
        _, url = site(["Hello"])
        bodies = []
        page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
        open_chat(page, url)
        page.fill("#system", "Be brief.")
        page.fill("#temperature", "0.5")
        page.fill("#max_tokens", "9")
        page.fill("#stop_text", "XX")
        for text in ("one", "two"):
            say(page, text)
            assert answered(page) == "Hello"
        sent = bodies[1]
        roles = [(message["role"], message["content"]) for message in sent["messages"]]
        assert roles == [("system", "Be brief."), ("user", "one"), ("assistant", "Hello"), ("user", "two")]
        assert (sent["temperature"], sent["max_tokens"], sent["stop"]) == (0.5, 9, ["XX"])
        assert "top_p" not in sent
        assert "seed" not in sent

    def test_a_model_cannot_write_html_into_the_page(self, page, site):
        _, url = site([HOSTILE[:10], HOSTILE[10:]])
        open_chat(page, url)
        say(page, HOSTILE)
        assert answered(page) == HOSTILE
        assert page.title() == "paged-core: chat"
        assert page.locator("article img, article script").count() == 0

    def test_even_a_page_that_tried_could_not(self, page, site):
        _, url = site(["Hi"])
        open_chat(page, url)
        refused = page.evaluate("() => { try { document.body.innerHTML = '<p>'; } catch (e) { return e.name; } }")
        assert refused == "TypeError"

    def test_stop_ends_the_answer_and_the_request(self, page, site):
        made, url = site(slow=True)
        open_chat(page, url)
        page.fill("#max_tokens", "200")
        say(page, "Hi")
        page.wait_for_selector("article.assistant .text:not(:empty)")
        page.click("#stop")
        text = answered(page)
        assert 0 < len(text) < 200
        assert "stopped" in page.text_content("article.assistant .note")
        deadline = time.monotonic() + 30
        while made.engine.has_unfinished:
            assert time.monotonic() < deadline, "the request went on"
            time.sleep(0.01)

    def test_errors_are_shown_and_the_text_is_kept(self, page, site):
        _, url = site(["Hi"])
        open_chat(page, url)
        page.fill("#temperature", "-1")
        say(page, "Hi")
        page.wait_for_selector("#error:not([hidden])")
        assert "400" in page.text_content("#error")
        assert "temperature" in page.text_content("#error")
        assert page.input_value("#prompt") == "Hi"
        page.fill("#temperature", "0")
        page.press("#prompt", "Enter")
        assert answered(page) == "Hi"
        assert page.is_hidden("#error")

    def test_the_key_lives_in_the_tab(self, page, site):
        _, url = site(["Hi"], api_key=(KEY,))
        page.goto(f"{url}/ui")
        page.wait_for_selector("#error:not([hidden])")
        assert "401" in page.text_content("#error")
        page.fill("#key", KEY)
        page.press("#key", "Tab")
        page.wait_for_selector("#model option", state="attached")
        page.goto(f"{url}/ui/blocks")
        page.wait_for_selector("#device[data-cell]")
        assert page.evaluate("() => localStorage.length") == 0
        other = page.context.new_page()
        other.goto(f"{url}/ui")
        other.wait_for_selector("#error:not([hidden])")

    def test_completions_continue_a_text(self, page, site):
        _, url = site([" rivers"])
        open_chat(page, url)
        page.select_option("#endpoint", "completion")
        say(page, "Many")
        assert answered(page) == " rivers"


def count(page: Any, name: str) -> int:
    return int(page.text_content(f"#n-{name}").replace(",", ""))


@contextmanager
def load(url: str, **body: Any) -> Iterator[None]:
    """A request that runs meanwhile, and is left at the end."""
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{url}/v1/completions", json={"stream": True, "ignore_eos": True, **body}) as response,
    ):
        lines = response.iter_lines()  # kept: its end would be the connection's
        next(lines)
        yield


def point_at(page: Any, block: int) -> str:
    """What the tip says of a block."""
    cell, columns = (int(page.get_attribute("#device", f"data-{name}")) for name in ("cell", "columns"))
    box = page.locator("#device .cells").bounding_box()
    x, y = box["x"] + (block % columns + 0.5) * cell, box["y"] + (block // columns + 0.5) * cell
    page.mouse.move(x, y)
    page.wait_for_selector("#tip:not([hidden])")
    return str(page.text_content("#tip"))


class TestBlocks:
    def test_the_map_shows_what_the_engine_holds(self, page, site):
        _, url = site(slow=True)
        page.goto(f"{url}/ui/blocks")
        page.wait_for_selector("#device[data-cell]")
        assert (count(page, "free"), count(page, "private")) == (256, 0)
        with load(url, prompt="a" * 40, n=3, temperature=1, max_tokens=200):
            page.wait_for_selector("#q-running [data-request]")
            shared = wait_until(lambda: count(page, "shared"))
            assert shared >= 9
            data = httpx.get(f"{url}/ui/data/pool").json()
            block = next(i for i, byte in enumerate(base64.b64decode(data["blocks"])) if byte & 127 == 3)
            tip = point_at(page, block)
            assert f"block {block}: shared, 3 references" in tip
            assert all(f"branch {branch}" in tip for branch in range(3))
            assert "prefix depth" in tip
            assert "3" in page.text_content("#q-running")
        wait_until(lambda: count(page, "shared") == 0 and count(page, "private") == 0)
        assert count(page, "cached") > 0
        assert page.locator("#q-running li").count() == 0

    def test_preemptions_appear_as_they_happen(self, page, site):
        shape = {"num_blocks": 20, "preempt": "preempt_swap", "prefix_cache": False, "num_host_blocks": 64}
        _, url = site(slow=True, shape=shape)
        page.goto(f"{url}/ui/blocks")
        page.wait_for_selector("#device[data-cell]")
        with load(url, prompt="a" * 20, max_tokens=50), load(url, prompt="b" * 20, max_tokens=50):
            page.wait_for_selector("#events .preempted")
            assert "swapped to the host" in page.text_content("#events .preempted >> nth=-1")
            wait_until(lambda: count(page, "swapped") or page.locator("#events .returned").count())
            page.wait_for_selector("#events .returned")

    def test_a_request_of_the_queue_marks_its_blocks(self, page, site):
        _, url = site(slow=True)
        page.goto(f"{url}/ui/blocks")
        with load(url, prompt="a" * 40, max_tokens=200):
            page.click("#q-running [data-request]")
            page.wait_for_selector("#q-running [aria-pressed=true]")
            wait_until(lambda: painted(page, ".marks"))
        assert painted(page, ".cells")

    def test_a_wrong_key_is_told_and_a_right_one_goes_on(self, page, site):
        _, url = site(api_key=(KEY,))
        page.goto(f"{url}/ui/blocks")
        page.wait_for_selector("#error:not([hidden])")
        assert "401" in page.text_content("#error")
        page.fill("#key", KEY)
        page.press("#key", "Tab")
        page.wait_for_selector("#device[data-cell]")
        page.wait_for_selector("#error", state="hidden")

    def test_a_paused_map_stands_still(self, page, site):
        _, url = site(slow=True)
        page.goto(f"{url}/ui/blocks")
        page.wait_for_selector("#device[data-cell]")
        page.click("#pause")
        page.wait_for_timeout(300)  # a look may have been on its way
        with load(url, prompt="a" * 40, max_tokens=100):
            page.wait_for_timeout(500)
            assert count(page, "private") == 0
            page.click("#pause")
            wait_until(lambda: count(page, "private"))

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_hundred_thousand_blocks_fit_into_the_window(self, page, site, scheme):
        _, url = site(shape={"num_blocks": 100_000})
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{url}/ui/blocks")
        page.wait_for_selector("#device[data-cell]")
        assert count(page, "free") == 100_000
        box = page.locator("#device .cells").bounding_box()
        assert box["height"] <= 560
        assert box["width"] <= 1200
        assert "block 99,999: free" in point_at(page, 99_999)


def painted(page: Any, canvas: str) -> bool:
    """Whether a canvas of the device's map has a pixel that is not transparent."""
    script = """(selector) => {
        const canvas = document.querySelector('#device ' + selector);
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return data.some((value) => value > 0);
    }"""
    return bool(page.evaluate(script, canvas))


def wait_until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not happen within half a minute"
        time.sleep(0.05)
    return value
