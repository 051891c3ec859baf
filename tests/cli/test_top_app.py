"""The screens of ``wsw top``, driven by keys, with samples of a tree of files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stat_tree import StatTree

pytest.importorskip("textual")

from worldswitch.cli.top_app import Chart, Detail, Help, Missing, Top
from worldswitch.cli.top_columns import VM_COLUMNS
from worldswitch.cli.top_grid import Grid
from worldswitch.errors import MissingError
from worldswitch.live.sampling import Host


class Screen:
    """The program on a terminal of some size, and the tree it looks at."""

    def __init__(self, tree: StatTree, app: Top, pilot) -> None:
        self.tree, self.app, self.pilot = tree, app, pilot

    async def step(self, times: int = 1) -> None:
        """The VMs do what they do, and a sample is taken."""
        for _ in range(times):
            self.tree.step()
            self.app.take(self.app.source.sample(self.app.watched()))
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    @property
    def grid(self) -> Grid:
        return self.app.screen.query_one("#grid", Grid)

    def lines(self, grid: Grid | None = None) -> list[str]:
        grid = grid or self.grid
        return [grid.render_line(y).text.rstrip() for y in range(grid.size.height)]

    def first(self) -> list[str]:
        """The first word of each row that is seen."""
        return [line.split()[0] for line in self.lines()[1:] if line]

    def text(self, name: str) -> str:
        return str(self.app.screen.query_one(name).render())


@pytest.fixture
def tree(tmp_path: Path) -> StatTree:
    found = StatTree(tmp_path)
    for pid, weight, process in ((10, 1.0, "crosvm"), (11, 3.0, "qemu"), (12, 2.0, "qemu")):
        found.add(pid, weight=weight, process=process)
    return found


@pytest.fixture
def drive(tree: StatTree):
    """Run a test's steps in the program, two samples taken."""

    def run(steps: Callable[[Screen], Awaitable[None]], size: tuple[int, int] = (200, 40), **options) -> None:
        async def whole() -> None:
            app = Top(Host(tree.root), 0, **options)
            async with app.run_test(size=size) as pilot:
                screen = Screen(tree, app, pilot)
                await screen.step(2)
                await steps(screen)
            app.source.close()

        asyncio.run(whole())

    return run


def test_the_most_exits_come_first_and_one_line_tells_of_all(drive) -> None:
    async def steps(screen: Screen) -> None:
        assert screen.first() == ["11-11", "12-11", "10-11"]
        assert "3 VMs, 12 vCPUs" in screen.text("#summary")

    drive(steps)


def test_one_vm_is_one(drive) -> None:
    async def steps(screen: Screen) -> None:
        assert "1 VM, 4 vCPUs" in screen.text("#summary")
        assert screen.first() == ["10-11"]

    drive(steps, only=("crosvm",))


def test_every_column_with_a_heading_sorts(drive) -> None:
    """Walking once through all of them comes back to the first; in each, rows are in its order."""

    async def steps(screen: Screen) -> None:
        headed = [column.key for column in VM_COLUMNS if column.title]
        seen = []
        for _ in headed:
            await screen.press("greater_than_sign")
            key = screen.grid.sorted_by
            seen.append(key)
            values = [row.values[key] for row in screen.grid.rows if row.values[key] is not None]
            assert values == sorted(values, reverse=screen.grid.down), key
            assert any("▼" in line or "▲" in line for line in screen.lines()[:1]), f"{key} is out of sight"
        assert sorted(seen) == sorted(headed)
        await screen.press("i")
        assert screen.first() == ["10-11", "12-11", "11-11"]

    drive(steps, size=(80, 24))


def test_a_click_on_a_heading_sorts(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.pilot.click("#grid", offset=(2, 0))
        assert screen.first() == ["10-11", "11-11", "12-11"]

    drive(steps)


def test_a_filter_leaves_the_rows_with_its_words_until_esc(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("slash", *"qemu")
        assert screen.first() == ["11-11", "12-11"]
        await screen.press("space", "1", "2", "enter")
        assert screen.first() == ["12-11"]
        assert "filter: qemu 12" in screen.text("#summary")
        await screen.press("escape")
        assert len(screen.first()) == 3

    drive(steps)


def test_paused_the_numbers_stay_and_sampling_goes_on(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("p")
        before = screen.lines()
        screen.tree.add(13)
        await screen.step(3)
        assert screen.lines() == before
        assert "PAUSED" in screen.text("#summary")
        await screen.press("p")
        await screen.step()
        assert "13-11" in screen.first()

    drive(steps)


def test_views_are_vms_vcpus_and_reasons(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("v")
        assert "no vCPU can be told by itself here" in "".join(screen.lines())
        await screen.press("v")
        assert {"IO", "HLT", "MMIO"} <= set(screen.first())
        await screen.press("v")
        assert screen.first()[0] == "11-11"

    drive(steps)


def test_enter_shows_one_vm_with_every_statistic(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("down", "enter")
        await screen.step(2)
        assert isinstance(screen.app.screen, Detail)
        assert "VM 12-11  qemu (12), 4 vCPUs" in screen.text("#title")
        counters = screen.lines(screen.app.screen.query_one("#counters", Grid))
        assert any(line.startswith("req_event") for line in counters)
        await screen.press("escape")
        assert screen.first()[0] == "11-11"

    drive(steps)


def test_a_sample_that_comes_while_a_screen_opens_waits_for_it(drive) -> None:
    async def steps(screen: Screen) -> None:
        screen.app.push_screen(Detail("11-11"))
        screen.app.draw()
        await screen.step()
        assert "VM 11-11" in screen.text("#title")

    drive(steps)


def test_a_vm_that_ends_while_it_is_shown_is_said_to_have_ended(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("enter")
        screen.tree.remove("11-11")
        await screen.step()
        assert "11-11 has ended; Esc goes back" in screen.text("#title")
        await screen.press("escape")
        await screen.step()
        assert screen.first() == ["12-11", "10-11"]

    drive(steps)


def test_the_cursor_stays_with_its_vm(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("down", "down")
        assert screen.grid.cursor == "10-11"
        screen.tree.weights["10-11"] = 50.0
        await screen.step(2)
        assert screen.first()[0] == "10-11"
        assert screen.grid.cursor == "10-11"
        screen.tree.remove("10-11")
        await screen.step()
        assert screen.grid.cursor in {"11-11", "12-11"}

    drive(steps)


@pytest.mark.parametrize("size", [(40, 10), (12, 4), (3, 2), (300, 100)])
def test_any_terminal_is_drawn(drive, size: tuple[int, int]) -> None:
    async def steps(screen: Screen) -> None:
        for keys in ([], ["v"], ["v"], ["v"], ["enter"], ["escape"], ["question_mark"], ["escape"]):
            await screen.press(*keys)
            await screen.step()
            for grid in screen.app.screen.query(Grid):
                assert all(grid.render_line(y).cell_length == grid.size.width for y in range(grid.size.height))
        await screen.pilot.resize_terminal(80, 24)
        await screen.step()
        assert "11-11" in screen.first()

    drive(steps, size=size)


def test_columns_that_do_not_fit_are_reached_sideways(drive) -> None:
    async def steps(screen: Screen) -> None:
        assert screen.lines()[0].endswith("›")
        assert "nx-split" not in screen.lines()[0]
        await screen.press(*["right"] * len(VM_COLUMNS))
        assert "nx-split" in screen.lines()[0]
        assert screen.first()[0] == "11-11"

    drive(steps, size=(60, 20))


def test_help_and_missing_open_and_close(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("question_mark")
        assert isinstance(screen.app.screen, Help)
        await screen.press("escape", "exclamation_mark")
        assert isinstance(screen.app.screen, Missing)
        await screen.press("q")
        assert screen.app.is_running
        assert not isinstance(screen.app.screen, Missing)

    drive(steps, size=(80, 24))


def test_q_and_ctrl_c_end_it(drive) -> None:
    for key in ("q", "ctrl+c"):

        async def steps(screen: Screen, key: str = key) -> None:
            await screen.press(key)
            assert not screen.app.is_running

        drive(steps)


def test_a_reset_is_said(drive) -> None:
    async def steps(screen: Screen) -> None:
        screen.tree.set("10-11", exits=0)
        screen.app.take(screen.app.source.sample())
        await screen.pilot.pause()
        assert "statistics were reset" in screen.text("#summary")

    drive(steps)


def test_tracing_that_cannot_be_had_says_why(drive) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("t")
        assert "tracefs is not mounted; as root: mount -t tracefs" in screen.text("#lacks")
        assert not screen.app.rates.traced

    drive(steps)


def test_recording_that_cannot_be_had_says_why(drive, monkeypatch) -> None:
    def refuse(_request) -> None:
        raise MissingError("perf is not installed: sudo apt install linux-perf")

    async def steps(screen: Screen) -> None:
        await screen.press("r")
        assert "sudo apt install linux-perf" in screen.text("#lacks")
        assert not screen.app.recorder.running

    monkeypatch.setattr("worldswitch.live.record.plan", refuse)
    drive(steps)


def test_with_nothing_there_it_says_what_is_missing(tmp_path: Path) -> None:
    async def whole() -> None:
        (tmp_path / "none/sys/module/kvm").mkdir(parents=True)
        app = Top(Host(tmp_path / "none"), 0)
        async with app.run_test(size=(100, 20)) as pilot:
            app.take(app.source.sample())
            await pilot.pause()
            assert "no VM runs here" in "".join(app.query_one(Grid).render_line(y).text for y in range(8))
            assert "debugfs is not mounted" in str(app.query_one("#lacks").render())

    asyncio.run(whole())


def test_a_terminal_without_vms_is_drawn(tmp_path: Path) -> None:
    async def whole() -> None:
        app = Top(Host(StatTree(tmp_path / "root").root), 0)
        async with app.run_test(size=(80, 24)) as pilot:
            for _ in range(2):
                app.take(app.source.sample())
            await pilot.press("enter", "down", "v", "v", "i", "greater_than_sign", "slash", "x", "enter")
            assert "0 VMs" in str(app.query_one("#summary").render())
            assert app.query_one(Chart).size.height > 0

    asyncio.run(whole())
