"""The screens of ``wsw top``. Imported only where one is drawn, for textual may not be installed."""

from __future__ import annotations

import textwrap
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Static

from worldswitch.cli import top_columns as columns
from worldswitch.cli.top_columns import Row
from worldswitch.cli.top_draw import chart, counted, short
from worldswitch.cli.top_grid import Grid
from worldswitch.cli.top_record import Recorder
from worldswitch.errors import MissingError, WorldswitchError, printable
from worldswitch.live.folders import Lack
from worldswitch.live.rates import Rates, VmRates, between
from worldswitch.live.sampling import Sample, Source

KEPT = 300
"""Samples a chart goes back."""
_FIRST = 0.5
_ABOUT = 56
_TABLES = 3
"""Those of one VM."""
_AROUND = 30
"""Columns of the help that its explanations do not have: names, frame, scroll bar."""
_VIEWS = {
    "vms": (columns.VM_COLUMNS, "exits", 2, "no VM runs here"),
    "vcpus": (columns.VCPU_COLUMNS, "exits", 2, "no vCPU can be told by itself here: see ! for what is missing"),
    "reasons": (columns.REASON_COLUMNS, "exits", 1, "no exits yet"),
}
"""View -> its columns, what it is sorted by, how many columns stay, and what stands where there are no rows."""
_HEIGHTS = ("#9fd8ff", "#7fc8ff", "#63ade3", "#4d92c6", "#3d7aa9")
"""Colours of a chart's lines, the topmost first."""


class Chart(Static):
    """Exits a second over time, as bars."""

    def draw(self, values: deque[float], title: str) -> None:
        """Draw the latest values."""
        width, height = self.size.width, self.size.height - 1
        if width < 2 or height < 1:
            return
        lines = chart(values, width, height)
        top = f"{title}, most {short(max(values, default=0.0))}"
        text = Text(top[:width], style="#8894a0")
        for place, line in enumerate(lines):
            text.append("\n" + line, style=_HEIGHTS[min(place, len(_HEIGHTS) - 1)])
        self.update(text)


class Help(ModalScreen[None]):
    """What the keys do and what the columns are."""

    BINDINGS: ClassVar = [Binding("escape,question_mark,h,q,f1,enter", "app.pop_screen", "Close")]

    def compose(self) -> ComposeResult:
        """See textual."""
        text = Text()
        about_width = max(12, min(_ABOUT, self.app.size.width - _AROUND))
        for title, lines in _HELP.items():
            text.append(f"{title}\n", style="bold #7fc8ff")
            for name, about in lines:
                text.append(f"  {name:<15} ", style="bold")
                text.append(textwrap.fill(about, about_width).replace("\n", "\n" + " " * 18) + "\n")
            text.append("\n")
        yield VerticalScroll(Static(text), id="box")


class Missing(ModalScreen[None]):
    """What cannot be shown, why, and how to get it."""

    BINDINGS: ClassVar = [Binding("escape,exclamation_mark,q,enter", "app.pop_screen", "Close")]

    def __init__(self, lacks: tuple[Lack, ...]) -> None:
        super().__init__()
        self._lacks = lacks

    def compose(self) -> ComposeResult:
        """See textual."""
        text = Text()
        for lack in self._lacks:
            text.append(f"{lack.what}\n", style="bold #ffc857")
            text.append(f"  why      {lack.why}\n  remedy   ")
            text.append(f"{lack.remedy}\n\n", style="#7bd88f")
        if not self._lacks:
            text.append("Nothing is missing.\n", style="#7bd88f")
        yield VerticalScroll(Static(text), id="box")


class Detail(Screen[None]):
    """One VM: its exits over time, by reason, by vCPU, and every statistic."""

    BINDINGS: ClassVar = [
        Binding("escape,q,backspace", "leave", "Back"),
        Binding("tab", "app.focus_next", "Next"),
    ]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.vm = name
        self.counters: dict[str, deque[float]] = {}

    def compose(self) -> ComposeResult:
        """See textual."""
        yield Static(id="title")
        yield Chart(id="chart")
        with Horizontal(id="tables"):
            with Vertical(id="left"):
                yield Grid(columns.REASON_COLUMNS[:4], "exits", nothing="no exits", id="reasons")
                yield Grid(
                    [one for one in columns.VCPU_COLUMNS if one.key != "vm"],
                    "exits",
                    nothing="vCPUs cannot be told apart here: see !",
                    id="vcpus",
                )
            yield Grid(columns.COUNTER_COLUMNS, "rate", id="counters")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin with the statistics."""
        self.query_one("#counters", Grid).focus()
        self.app.draw()  # type: ignore[attr-defined]

    def action_leave(self) -> None:
        """Back to all VMs."""
        self.app.pop_screen()

    def show(self, vm: VmRates | None, history: deque[float]) -> None:
        """Draw the VM; None if it has ended."""
        title = self.query_one("#title", Static)
        if vm is None:
            title.update(Text(f"{self.vm} has ended; Esc goes back", style="bold #ffc857"))
            return
        for name, rate in vm.rates.items():
            self.counters.setdefault(name, deque(maxlen=columns.HISTORY)).append(rate)
        many = "" if vm.vcpu_count is None else f", {counted(vm.vcpu_count, 'vCPU')}"
        told = "reasons traced" if vm.traced else "reasons as far as statistics tell; t traces"
        line = Text()
        line.append(f"VM {vm.name}", style="bold #7fc8ff")
        line.append(f"  {vm.process} ({vm.pid}){many}  ", style="")
        line.append(f"{short(vm.rates.get('exits', 0.0))} exits/s", style="bold")
        line.append(f"  {told}", style="#8894a0")
        title.update(line)
        self.query_one("#chart", Chart).draw(history, "exits a second")
        one = Rates(vm.seconds, (vm,), traced=vm.traced)
        self.query_one("#reasons", Grid).show(list(columns.reason_rows(one)))
        vcpus = list(columns.vcpu_rows(one))
        self.query_one("#vcpus", Grid).show(vcpus)
        apart = bool(vcpus) or self.app.size.height >= 40
        self.query_one("#vcpus").display = apart
        self.query_one("#reasons").set_class(not apart, "alone")
        self.query_one("#counters", Grid).show(list(columns.counter_rows(vm, self.counters)))


class Top(App[None]):
    """All VMs, live.

    Args:
        source: Where samples come from; the app closes it.
        interval: Seconds between them; 0 takes none by itself (tests hand them to :meth:`take`).
        only: Names or process ids of VMs to show; empty for all.
        trace: Count exits by reason from the start.
    """

    TITLE = "wsw top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: #101820; color: #d5dde5; }
    #summary, #title { height: 1; padding: 0 1; background: #16212c; }
    #chart { height: 6; padding: 0 1; }
    #grid { height: 1fr; }
    #lacks { height: auto; max-height: 2; padding: 0 1; color: #ffc857; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #filter.on { display: block; }
    #left { width: 1fr; } #counters { width: 86; height: 1fr; }
    #reasons { height: auto; max-height: 60%; margin-bottom: 1; } #vcpus { height: 1fr; }
    Screen.-narrow #tables { layout: vertical; }
    Screen.-narrow #left { width: 100%; height: 50%; } Screen.-narrow #counters { width: 100%; }
    Screen.-narrow #reasons.alone { max-height: 100%; }
    Screen.-short #chart { height: 4; }
    Screen.-low #chart { display: none; }
    Help, Missing { align: center middle; }
    #box { width: 84; max-width: 96%; height: auto; max-height: 90%; padding: 1 2; background: #1d2a38;
           border: round #7fc8ff; }
    """
    BINDINGS: ClassVar = [
        Binding("q,ctrl+c", "quit", "Quit"),
        Binding("question_mark,h,f1", "help", "Help", key_display="?"),
        Binding("v", "view", "View"),
        Binding("slash,f", "filter", "Filter", key_display="/"),
        Binding("p,space", "pause", "Pause"),
        Binding("t", "trace", "Trace"),
        Binding("r", "record", "Record"),
        Binding("exclamation_mark", "missing", "Missing", key_display="!"),
        Binding("plus,equals_sign", "interval(-1)", "Faster", show=False),
        Binding("minus", "interval(1)", "Slower", show=False),
        Binding("escape", "all", "Leave the filter", show=False),
    ]

    def __init__(self, source: Source, interval: float = 1.0, only: tuple[str, ...] = (), trace: bool = False) -> None:
        super().__init__()
        self.source, self.interval, self.only = source, interval, only
        self.rates = Rates(0.0)
        self.view, self.words, self.paused = "vms", "", False
        self.recorder = Recorder()
        self._trace = trace
        self._before: Sample | None = None
        self._history: dict[str, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=KEPT)
        self._stop, self._again = threading.Event(), threading.Event()
        self._said = ""

    def compose(self) -> ComposeResult:
        """See textual."""
        yield Static(id="summary")
        yield Chart(id="chart")
        shown, by, fixed, nothing = _VIEWS[self.view]
        yield Grid(shown, by, fixed, nothing, id="grid")
        yield Static(id="lacks")
        yield Input(placeholder="VM, process or reason; words must all be there; Enter keeps, Esc clears", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to sample."""
        self.query_one("#grid", Grid).focus()
        if self._trace:
            self.action_trace()
        if self.interval > 0:
            self.run_worker(self._sample, thread=True, exclusive=True)
        self.draw()

    def on_unmount(self) -> None:
        """End sampling and any recording."""
        self._stop.set()
        self._again.set()
        self.recorder.stop()

    def _sample(self) -> None:
        """In a thread: samples until the end, the second soon so that there is something to see."""
        wait = min(_FIRST, self.interval)
        try:
            while not self._stop.is_set():
                begin = time.monotonic()
                sample = self.source.sample(self.watched())
                if self._stop.is_set():
                    break
                self.call_from_thread(self.take, sample)
                self._again.wait(max(0.01, wait - (time.monotonic() - begin)))
                self._again.clear()
                wait = self.interval
        finally:
            self.source.close()

    def watched(self) -> tuple[str, ...]:
        """The VM that is looked at closely."""
        return tuple(screen.vm for screen in self.screen_stack if isinstance(screen, Detail))

    def take(self, sample: Sample) -> None:
        """A new sample: what is paused is only the drawing."""
        sample = sample.only(self.only)
        rates = between(self._before, sample)
        first, self._before = self._before is None, sample
        for vm in rates.vms:
            if not vm.new:
                self._history.setdefault(vm.name, deque(maxlen=KEPT)).append(vm.rates.get("exits", 0.0))
        for name in rates.gone:
            self._history.pop(name, None)
        if not first:
            self._all.append(rates.total("exits"))
        if not self.paused:
            self.rates = rates
            self.draw()

    def draw(self) -> None:
        """Draw what is seen."""
        # A sample may come between the opening of a screen and its first widgets.
        if isinstance(self.screen, Detail) and len(self.screen.query(Grid)) == _TABLES:
            vm = next((one for one in self.rates.vms if one.name == self.screen.vm), None)
            self.screen.show(vm, self._history.get(self.screen.vm, deque()))
        base = self.screen_stack[0]
        if self.screen is not base or not base.query("#grid"):
            return
        width = self.size.width
        base.query_one("#summary", Static).update(self._summary(width - 2))
        base.query_one("#chart", Chart).draw(self._all, "exits a second, all VMs")
        base.query_one("#grid", Grid).show(columns.matching(self._rows(), self.words))
        lacks = base.query_one("#lacks", Static)
        lacks.display = bool(self.rates.lacks or self._said)
        lacks.update(Text(self._note(width - 2)))

    def _rows(self) -> list[Row]:
        if self.view == "vms":
            return list(columns.vm_rows(self.rates, self._history))
        return list(columns.vcpu_rows(self.rates) if self.view == "vcpus" else columns.reason_rows(self.rates))

    def _note(self, width: int) -> str:
        if self._said:
            return self._said
        lacks = self.rates.lacks
        if not lacks:
            return ""
        more = f" (+{len(lacks) - 1} more)" if len(lacks) > 1 else ""
        text = f"missing: {lacks[0].what}: {lacks[0].why}{more}; ! says what to do"
        return text if len(text) <= 2 * width else f"missing: {lacks[0].what}{more}; ! says why and what to do"

    def _summary(self, width: int) -> Text:
        rates = self.rates
        vcpus = sum(vm.vcpu_count or 0 for vm in rates.vms)
        parts: list[tuple[str, str]] = [
            ("wsw top", "bold #7fc8ff"),
            (f"{counted(len(rates.vms), 'VM')}, {counted(vcpus, 'vCPU')}", ""),
        ]
        if self.paused:
            parts.append(("PAUSED", "bold #101820 on #ffc857"))
        if self.recorder.running:
            parts.append((f"● REC {self.recorder.seconds:.0f} s", "bold #ff6b6b"))
        if self.words:
            parts.append((f"filter: {self.words}", "#ffc857"))
        if any("exits" in vm.rates for vm in rates.vms):
            parts.append((f"{short(rates.total('exits'))} exits/s", "bold"))
        for name, title in (("pf_taken", "fault/s"), ("halt_exits", "halt/s")):
            if any(name in vm.rates for vm in rates.vms):
                parts.append((f"{short(rates.total(name))} {title}", ""))
        parts.append((f"every {self.interval:g} s", "#8894a0"))
        if rates.traced:
            parts.append(("reasons traced", "#7bd88f"))
        if any(vm.reset for vm in rates.vms):
            parts.append(("statistics were reset", "#ffc857"))
        text = Text()
        for what, style in parts:
            if text and text.cell_len + 3 + len(what) > width:
                break
            text.append("   " if text else "")
            text.append(what, style=style)
        return text

    def on_resize(self) -> None:
        """Leave out what a small terminal has no room for."""
        for screen in self.screen_stack:
            self._fit(screen)
        self.call_after_refresh(self.draw)

    def _fit(self, screen: Screen[Any]) -> None:
        screen.set_class(self.size.width < 140, "-narrow")
        screen.set_class(self.size.height < 30, "-short")
        screen.set_class(self.size.height < 20, "-low")

    def on_screen_resume(self) -> None:
        """Draw what has changed meanwhile."""
        self.call_after_refresh(self.draw)

    def say(self, text: str) -> None:
        """A sentence in the line of what is missing, for some seconds."""
        self._said = printable(text)
        self.set_timer(8.0, self._unsay)
        self.draw()

    def _unsay(self) -> None:
        self._said = ""
        self.draw()

    def on_grid_chosen(self, chosen: Grid.Chosen) -> None:
        """Look closer at a VM."""
        if chosen.grid.id != "grid":
            return
        name = chosen.key.partition("/")[0]
        if self.view == "reasons":
            row = next((one for one in chosen.grid.rows if one.key == chosen.key), None)
            name = str(row.values["most"]) if row and row.values["most"] else ""
        if any(vm.name == name for vm in self.rates.vms):
            screen = Detail(name)
            self._fit(screen)
            self.push_screen(screen)
            self._again.set()

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Filter while it is typed."""
        self.words = changed.value
        self.draw()

    def on_input_submitted(self, _submitted: Input.Submitted) -> None:
        """Keep it."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one("#filter").remove_class("on")
        self.query_one("#grid", Grid).focus()

    def action_filter(self) -> None:
        """Type words."""
        if self.screen is self.screen_stack[0]:
            self.query_one("#filter").add_class("on")
            self.query_one("#filter", Input).focus()

    def action_all(self) -> None:
        """Show all again."""
        if self.screen is self.screen_stack[0]:
            self.query_one("#filter", Input).value = ""
            self._leave_filter()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the table of all VMs are none elsewhere."""
        return action not in ("view", "filter", "all") or self.screen is self.screen_stack[0]

    def action_pause(self) -> None:
        """Stop drawing new samples, or go on."""
        self.paused = not self.paused
        self.draw()

    def action_view(self) -> None:
        """The next table."""
        if self.screen is not self.screen_stack[0]:
            return
        names = list(_VIEWS)
        self.view = names[(names.index(self.view) + 1) % len(names)]
        shown, by, fixed, nothing = _VIEWS[self.view]
        grid = self.query_one("#grid", Grid)
        grid.nothing = nothing
        grid.take_columns(shown, by, fixed)
        self.draw()

    def action_trace(self) -> None:
        """Count exits by reason in the kernel, or stop it."""
        self._trace = not self.rates.traced
        try:
            self.source.trace(self._trace)
        except MissingError as error:
            self.say(str(error))

    def action_record(self) -> None:
        """Record events to a file, of the VM that is looked at or of all; or end it."""
        if self.recorder.running:
            self.say("the recording ends ...")
            self.run_worker(self._end_recording, thread=True)
            return
        vm = next((one for one in self.rates.vms if one.name in self.watched()), None)
        try:
            self.say(self.recorder.start(vm.pid if vm else None))
        except WorldswitchError as error:
            self.say(str(error))

    def _end_recording(self) -> None:
        said = self.recorder.stop()
        self.call_from_thread(self.say, said)

    def action_missing(self) -> None:
        """Say what is missing."""
        self.push_screen(Missing(self.rates.lacks))

    def action_help(self) -> None:
        """Say what the keys do."""
        self.push_screen(Help())

    def action_interval(self, by: int) -> None:
        """Sample half or twice as often."""
        if self.interval > 0:
            self.interval = min(60.0, max(0.25, self.interval * (2.0 if by > 0 else 0.5)))
            self._again.set()
            self.draw()


_HELP: Mapping[str, list[tuple[str, str]]] = {
    "Keys": [
        ("↑ ↓ PgUp PgDn", "move; Home, End: first and last"),
        ("← →", "columns that do not fit"),
        ("< >", "sort by the column left or right; a click on a heading does"),
        ("i", "turn the order"),
        ("Enter", "the VM under the cursor: reasons, vCPUs, every statistic"),
        ("v", "VMs, vCPUs, reasons"),
        ("/", "filter by words; Esc leaves it"),
        ("p", "pause; sampling goes on"),
        ("t", "count exits by reason through tracefs; costs each exit a little"),
        ("r", "record events to a file, of the VM shown or of all; again ends it"),
        ("+ -", "sample twice or half as often"),
        ("!", "what cannot be shown here, and how to get it"),
        ("q", "quit"),
    ],
    "Columns": [(one.title.strip() or "bars", one.about) for one in columns.VM_COLUMNS],
    "Colours": [
        ("green", "a VM that was just started; 90 % or more in huge pages"),
        ("yellow", "worth a look: polling from 20 %, polls that miss, split pages, under 50 % in huge pages"),
        ("red", "polling from 80 %, instructions that cannot be emulated"),
    ],
}
