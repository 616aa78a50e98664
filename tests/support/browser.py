"""A real browser for the playground's tests: the system's Chromium, driven by playwright.

Its own downloads are not used. Without Chromium the tests are skipped, unless
ANTIPHON_REQUIRE_BROWSER is set: then they fail.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

CHROMIUM = "ANTIPHON_CHROMIUM"
REQUIRE = "ANTIPHON_REQUIRE_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--host-resolver-rules=MAP playground.test 127.0.0.1",
    # A beep once a second is what the microphone hears, and the page may hear it.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
WAIT_MS = 30_000  # a page is quick; a machine with other work may not be
INSECURE_HOST = "playground.test"
"""Leads to this machine as well, but no browser thinks it safe."""


def executable() -> str:
    """Chromium's path. Skips the test, or fails it where a browser is required."""
    found = os.environ.get(CHROMIUM) or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is not None:
        return found
    reason = f"no Chromium: install one, or name it in {CHROMIUM}"
    if os.environ.get(REQUIRE):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, headless."""
    path = executable()
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page, and what went on behind it."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)  # the console's, and what no script caught
    elsewhere: list[str] = field(default_factory=list)  # requests to anything but the server

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} {message.location}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:" + self.url)):
            self.elsewhere.append(request.url)

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true.

        Playwright's own wait for that evaluates text within the page, which its policy forbids.
        """
        due = time.monotonic() + WAIT_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < due, f"it did not become true: {expression}"
            self.page.wait_for_timeout(10)

    def check(self, *expected: str) -> None:
        """Nothing went wrong but for messages with these words, and nothing left the server."""
        wrong = [line for line in self.errors if not any(words in line for words in expected)]
        assert wrong == []
        assert self.elsewhere == []


@contextmanager
def visit(
    browser: Browser, url: str, *, script: str | None = None, **context: Any
) -> Iterator[Visit]:
    """A page at `url` in a session of its own; `context` are playwright's options of it.

    `script` runs in the page before its own.
    """
    options: Mapping[str, Any] = {"viewport": {"width": 1280, "height": 860}, **context}
    session = browser.new_context(**options)
    session.set_default_timeout(WAIT_MS)
    if script is not None:
        session.add_init_script(script)
    try:
        found = Visit(session.new_page(), url)
        found.page.goto(url)
        yield found
    finally:
        session.close()
