"""A page in headless Chromium, with everything it asks for and complains of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Opened:
    """A page opened from a file.

    Attributes:
        page: Playwright's.
        requests: URLs asked for.
        complaints: Errors of scripts and of the console.
    """

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def browser(path: str) -> Iterator[Any]:
    """Chromium at *path*, ended at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield one
        finally:
            one.close()


@contextmanager
def opened(browser: Any, file: Path, width: int = 1280, height: int = 800, **context: Any) -> Iterator[Opened]:
    """*file* opened by file://; *context* are options of a browser context, such as ``color_scheme``."""
    where = browser.new_context(viewport={"width": width, "height": height}, **context)
    one = Opened(where.new_page())
    one.page.on("request", lambda request: one.requests.append(request.url))
    one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
    one.page.on("console", lambda said: one.complaints.append(said.text) if said.type in ("error", "warning") else None)
    try:
        one.page.goto(file.as_uri())
        yield one
    finally:
        where.close()
