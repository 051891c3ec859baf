"""The page in headless Chromium, opened from its file: it works, asks for nothing, and lets nothing in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browser import Opened, opened
from report_inputs import hostile

pytestmark = pytest.mark.needs("chromium")

LANES = ".lanes"
STATUS = ".timeline .status"
SCHEMES = ("light", "dark")


def status(one: Opened) -> str:
    return str(one.page.locator(STATUS).first.text_content())


def exits_shown(one: Opened) -> int:
    return int(status(one).split(" exits")[0].split(", ")[-1].replace(",", ""))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_opens_from_its_file_without_a_complaint_or_a_request(chromium: Any, mixed_page: Path, scheme: str) -> None:
    with opened(chromium, mixed_page, color_scheme=scheme) as one:
        one.page.wait_for_selector(".lane path", state="attached")
        one.page.wait_for_timeout(200)
        assert one.complaints == []
        assert one.requests == [mixed_page.as_uri()]


def test_the_first_screen_tells_the_root_churn_story(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        for text in ("200 writes of CR0.WP cost 800 page faults", "804 page faults", "would not have happened"):
            box = one.page.get_by_text(text).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 800, text


def test_the_first_finding_is_there_before_any_timeline_is_drawn(chromium: Any, churn_page: Path) -> None:
    """What is drawn by script waits for the first paint."""
    with opened(chromium, churn_page) as one:
        watch = (
            "addEventListener('DOMContentLoaded', () => { window.early = [!!document.querySelector('.finding h2'), "
            "!!document.querySelector('.lane')]; })"
        )
        one.page.add_init_script(watch)
        one.page.reload()
        assert one.page.evaluate("window.early") == [True, False]
        one.page.wait_for_selector(".lane")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 640)])
def test_the_page_never_scrolls_sideways(chromium: Any, mixed_page: Path, width: int, height: int) -> None:
    with opened(chromium, mixed_page, width, height) as one:
        one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert one.page.evaluate("document.documentElement.scrollWidth") == width


def test_all_exits_are_in_the_timeline(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        # perf kvm stat counts 1,015 in the same recording's trace.dat as wsw analyze: 200 + 804 + 11.
        assert exits_shown(one) == 200 + 804 + 11


def test_the_timeline_zooms_by_keys(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        one.page.focus(LANES)
        whole = status(one)
        counts = [exits_shown(one)]
        for _ in range(3):
            one.page.keyboard.press("+")
            counts.append(exits_shown(one))
        assert counts == sorted(counts, reverse=True)
        assert counts[-1] < counts[0] / 4
        before = status(one)
        one.page.keyboard.press("ArrowRight")
        assert status(one) != before
        one.page.keyboard.press("ArrowLeft")
        assert status(one) == before
        one.page.keyboard.press("Home")
        assert status(one) == whole


def test_zoomed_in_far_enough_the_finest_bins_are_drawn(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        one.page.focus(LANES)
        assert "added up" in status(one)
        for _ in range(8):
            one.page.keyboard.press("+")
        assert "the finest held" in status(one)


def test_the_timeline_zooms_by_dragging_and_back_by_a_button(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        one.page.locator(LANES).scroll_into_view_if_needed()
        box = one.page.locator("svg.lane").bounding_box()
        one.page.mouse.move(box["x"] + 100, box["y"] + 20)
        one.page.mouse.down()
        one.page.mouse.move(box["x"] + 200, box["y"] + 20, steps=5)
        one.page.mouse.up()
        assert 0 < exits_shown(one) < 300
        one.page.get_by_role("button", name="The whole trace").click()
        assert exits_shown(one) == 1015


def test_pointing_at_a_bin_tells_its_counts(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        one.page.locator(LANES).scroll_into_view_if_needed()
        box = one.page.locator("svg.lane").bounding_box()
        one.page.mouse.move(box["x"] + 500, box["y"] + 40)
        text = one.page.locator(".tip").text_content()
        assert "cr0_sel_write: " in text or "npf: " in text


def test_the_table_behind_the_timeline_has_the_exits_shown(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        one.page.get_by_text("Table behind this: the bins as drawn").click()
        cells = one.page.locator(".timeline tbody tr td:nth-child(4)").all_text_contents()
        assert sum(int(text.replace(",", "")) for text in cells) == 1015


def table_of(one: Opened, figure: str) -> Any:
    place = one.page.locator(f"#{figure}")
    place.locator("details.data > summary").click()
    return place


def column(place: Any, number: int) -> list[str]:
    return [cell.text_content() for cell in place.locator(f"tbody tr:not([hidden]) td:nth-child({number})").all()]


def test_a_table_is_sorted_by_its_headings(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        place = table_of(one, "p0-reasons")
        count = place.get_by_role("button", name="exits")
        count.click()
        assert column(place, 2) == ["804", "200", "11", "0"]
        assert place.get_by_role("columnheader", name="exits").get_attribute("aria-sort") == "descending"
        count.focus()
        one.page.keyboard.press("Enter")
        assert column(place, 2) == ["0", "11", "200", "804"]
        place.get_by_role("button", name="reason").click()
        assert column(place, 1) == ["cr0_sel_write", "hlt", "interrupt", "npf"]


def test_what_nobody_knows_is_sorted_last_both_ways(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        place = table_of(one, "p0-reasons")
        for _ in range(2):
            place.get_by_role("button", name="mean").click()
            assert column(place, 5)[-1] == "–"


def test_a_table_is_filtered(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        place = table_of(one, "p0-reasons")
        place.get_by_label("Filter").fill("NPF")
        assert column(place, 1) == ["npf"]
        assert place.get_by_role("status").text_content() == "1 of 4 rows"
        place.get_by_label("Filter").fill("")
        assert len(column(place, 1)) == 4


def test_commands_are_copied_as_they_are_shown(chromium: Any, mixed_page: Path) -> None:
    with opened(chromium, mixed_page, permissions=["clipboard-read", "clipboard-write"]) as one:
        place = one.page.locator(".copyable").first
        place.get_by_role("button", name="Copy").click()
        place.get_by_role("button", name="Copied").wait_for()
        assert one.page.evaluate("navigator.clipboard.readText()") == place.locator("code").text_content()


def test_a_table_is_copied_as_tab_separated_values(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page, permissions=["clipboard-read", "clipboard-write"]) as one:
        place = table_of(one, "p0-hot-rip")
        place.get_by_role("button", name="Copy table").click()
        place.get_by_role("button", name="Copied").wait_for()
        lines = one.page.evaluate("navigator.clipboard.readText()").split("\n")
        assert lines[0] == "rip\tdetail\texits\ttime"
        assert lines[1].split("\t")[:3] == ["0x101a", "cr0_sel_write", "200"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_colours_follow_the_system_until_chosen(chromium: Any, churn_page: Path, scheme: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(chromium, churn_page, color_scheme=scheme) as one:
        own = one.page.evaluate(ground)
        other = "Light" if scheme == "dark" else "Dark"
        one.page.get_by_role("button", name=other).click()
        chosen = one.page.evaluate(ground)
        assert chosen != own
        assert one.page.get_by_role("button", name=other).get_attribute("aria-pressed") == "true"
        one.page.reload()
        assert one.page.evaluate(ground) == chosen
        one.page.get_by_role("button", name="Auto").click()
        assert one.page.evaluate(ground) == own


@pytest.mark.parametrize(
    "attack",
    [
        "const one = document.createElement('script'); one.text = 'window.hacked = 1'; document.body.append(one)",
        "document.body.innerHTML = '<img src=x onerror=window.hacked=1>'",
        "document.body.setAttribute('onclick', 'window.hacked = 1'); document.body.click()",
        "eval('window.hacked = 1')",
        "const one = document.createElement('a'); one.href = 'javascript:window.hacked=1'; one.click()",
    ],
)
def test_the_policy_lets_no_other_script_run(chromium: Any, churn_page: Path, attack: str) -> None:
    # As a timer of the page's own world would do it: what a test evaluates is let through by the browser.
    with opened(chromium, churn_page) as one:
        one.page.evaluate(f"setTimeout(() => {{ {attack} }})")
        one.page.wait_for_timeout(200)
        assert one.page.evaluate("window.hacked") is None
        assert one.complaints


def test_the_policy_lets_no_request_out(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        one.page.evaluate(
            """() => { setTimeout(() => { fetch('https://example.org/').catch(() => {});
               const image = new Image(); image.src = 'https://example.org/x.png'; document.body.append(image); }); }"""
        )
        one.page.wait_for_timeout(300)
        assert sum("Content Security Policy" in text for text in one.complaints) >= 2


def test_hostile_names_do_nothing(chromium: Any, tmp_path: Path) -> None:
    from worldswitch.report.build import report
    from worldswitch.report.html import html

    page = tmp_path / "page.html"
    page.write_text(html(report(hostile(tmp_path))), encoding="utf-8")
    with opened(chromium, page) as one:
        one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        one.page.wait_for_timeout(300)
        assert one.page.evaluate("window.hacked") is None
        assert one.page.evaluate("document.images.length") == 0
        assert one.requests == [page.as_uri()]
        assert one.complaints == []


def test_printed_it_shows_its_tables_and_no_controls(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page, color_scheme="dark") as one:
        one.page.emulate_media(media="print")
        one.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert one.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert one.page.locator("#p0-reasons table").is_visible()
        assert not one.page.locator(".theme").is_visible()
        assert not one.page.locator("nav").is_visible()
        one.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert not one.page.locator("#p0-reasons table").is_visible()
        assert one.page.pdf()[:5] == b"%PDF-"


def test_without_scripts_all_but_the_timeline_is_there(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page, java_script_enabled=False) as one:
        assert one.page.locator(".finding h2").is_visible()
        assert one.page.locator("#p0-reasons .bar").first.is_visible()
        assert not one.page.locator(".theme").is_visible()


def test_the_keyboard_reaches_everything(chromium: Any, churn_page: Path) -> None:
    with opened(chromium, churn_page) as one:
        reached = []
        for _ in range(40):
            one.page.keyboard.press("Tab")
            reached.append(one.page.evaluate("document.activeElement.className || document.activeElement.tagName"))
        assert reached[0] == "skip"
        assert "lanes" in reached
        assert "SUMMARY" in reached


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_fault(chromium: Any, mixed_page: Path, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # The checker brings a script of its own, which the page's policy would rightly refuse.
    with opened(chromium, mixed_page, width, color_scheme=scheme, bypass_csp=True) as one:
        one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        one.page.wait_for_timeout(100)
        found = Axe().run(one.page).response["violations"]
        serious = [
            (fault["id"], fault["nodes"][0]["html"][:200], fault["nodes"][0]["failureSummary"])
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]
        assert serious == []
