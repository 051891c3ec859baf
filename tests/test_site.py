"""The documentation site builds without a warning, asks no other host for anything, and can be read by everybody."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from worldswitch.cli import COMMANDS
from worldswitch.kvm.facts import facts, lines
from worldswitch.kvm.rules import rules

ROOT = Path(__file__).resolve().parent.parent
LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""Elements a browser loads by itself, and the attribute that says from where."""
NOT_LOADED = {"canonical", "next", "prev", "alternate", "edit"}
"""What a ``link`` is that is only told, by its ``rel``."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning, such as of a link to nowhere, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"a page that is not in mkdocs.yml's nav, or a link to nowhere?\n{done.stderr}"
    return folder


class Loads(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in NOT_LOADED:
            return
        if tag in LOADED and given.get(LOADED[tag]):
            self.addresses.append(given[LOADED[tag]] or "")


pytestmark = pytest.mark.needs("docs")


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loaded = []
    for page in site.rglob("*.html"):
        parser = Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.addresses, page
        loaded += [(page.name, address) for address in parser.addresses]
    assert [one for one in loaded if re.match(r"(?:[a-z]+:)?//", one[1])] == []


def test_style_sheets_load_nothing_from_other_hosts(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    found = {sheet.name: re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*", sheet.read_text()) for sheet in sheets}
    assert {name: urls for name, urls in found.items() if urls} == {}


def test_every_page_can_be_reached_from_every_other(site: Path) -> None:
    listed = set(re.findall(r'href="([^"#]+)"[^>]*class="md-nav__link', (site / "index.html").read_text("utf-8")))
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html", "index.html"}
    assert sorted(pages - listed) == []


def test_every_rule_is_on_the_page_with_its_sentence(site: Path) -> None:
    page = text_of(site / "rules-reference.html")
    ids = set(re.findall(r'<h3 id="([^"]+)"', (site / "rules-reference.html").read_text(encoding="utf-8")))
    assert ids == set(rules())
    missing = [rule.id for rule in rules().values() if plain(rule.sentence) not in page or rule.tested not in page]
    assert missing == []


def test_every_commit_of_a_rule_is_a_link(site: Path) -> None:
    html = (site / "rules-reference.html").read_text(encoding="utf-8")
    commits = {commit for rule in rules().values() for commit in re.findall(r"commit ([0-9a-f]{12})\b", rule.source)}
    assert len(commits) > 20
    assert [commit for commit in commits if f'href="https://git.kernel.org/linus/{commit}"' not in html] == []


def test_every_fact_and_kernel_is_in_the_support_matrix(site: Path) -> None:
    html = (site / "support.html").read_text(encoding="utf-8")
    assert [name for name in facts() if f'<h3 id="{name}"' not in html] == []
    page = text_of(site / "support.html")
    assert [version for version in lines().values() if version not in page] == []
    assert [fact.id for fact in facts().values() if not fact.verified and plain(fact.why) not in page] == []


def test_every_command_has_its_help(site: Path) -> None:
    html = (site / "commands.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'<h2 id="{name}"' not in html] == []
    assert html.count("Usage: wsw") >= len(COMMANDS)


def test_every_public_name_is_described(site: Path) -> None:
    import worldswitch

    pages = [page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")]
    described = {name.rpartition(".")[2] for page in pages for name in re.findall(r'id="(worldswitch[\w.]+)"', page)}
    assert sorted(set(worldswitch.__all__) - described) == []


def text_of(page: Path) -> str:
    """What a page says: its text without tags, blanks as one."""
    from html import unescape

    html = page.read_text(encoding="utf-8")
    return plain(unescape(re.sub(r"<[^>]+>", "", html)))


def plain(text: str) -> str:
    return " ".join(text.split())


# ---- in a browser -------------------------------------------------------------------------------------------------

SEEN = ("index.html", "tutorial.html", "guides/trace.html", "api/basics.html")
"""Pages of each kind: prose, terminal text, tables, the programming interface."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served on this host."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility_and_no_request_elsewhere(address: str, chromium: Any, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    faults, requests, errors = [], [], []
    with chromium.new_page(color_scheme=scheme, viewport={"width": 390, "height": 844}) as page:
        page.set_default_timeout(120_000)  # a busy host
        page.on("request", lambda asked: requests.append(asked.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        for name in SEEN:
            page.goto(address + name, wait_until="load")
            found = Axe().run(page).response["violations"]
            faults += [
                (name, fault["id"], fault["nodes"][0]["html"][:200])
                for fault in found
                if fault["impact"] in ("serious", "critical")
            ]
    assert (faults, errors) == ([], [])
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.needs("chromium")
def test_search_finds_a_rule_and_the_palette_changes(address: str, chromium: Any) -> None:
    with chromium.new_page(color_scheme="light", viewport={"width": 1300, "height": 900}) as page:
        page.set_default_timeout(120_000)  # a busy host
        page.goto(address + "index.html")
        assert page.evaluate("document.body.dataset.mdColorScheme") == "default"
        page.locator("label[title='Dark']").click()
        assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        page.locator("input.md-search__input").fill("guest owns CR0")
        result = page.locator(".md-search-result__link[href*='rules-reference.html']").first
        result.wait_for()
