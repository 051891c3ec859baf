"""Exits by reason: from kvm's trace events, or, where they do not come, from the names of statistics.

The events are read in a tracing instance of their own, which is always removed: nobody else's tracing is disturbed.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from worldswitch.errors import MissingError
from worldswitch.live import permissions, tracefs
from worldswitch.live.permissions import ROOT
from worldswitch.record.result import NOT_TOLD

TRACED, COUNTED = "kvm:kvm_exit", "statistics"
"""Where exits by reason were taken from."""
INTERRUPTS = frozenset(("EXTERNAL_INTERRUPT", "PREEMPTION_TIMER", "interrupt", "nmi", "smi"))
"""Reasons that are the host's doing (names of arch/x86/include/uapi/asm/vmx.h and svm.h)."""

_STATISTICS = {
    "io_exits": "IO",
    "mmio_exits": "MMIO",
    "halt_exits": "HLT",
    "hypercalls": "HYPERCALL",
    "notify_window_exits": "NOTIFY",
    "irq_window_exits": "INTERRUPT_WINDOW",
    "nmi_window_exits": "NMI_WINDOW",
}
"""Statistic -> reason, of those that count one kind of exit (arch/x86/kvm/x86.c, kvm_vcpu_stats_desc)."""
_FITTING = 15_000
"""Exits whose events the buffer has room for as it comes (1408 KiB for each CPU)."""
_EVENT_BYTES = 128
"""More than a kvm_exit event takes in the ring buffer: 40 to 72 bytes, by kernel."""
_LINE = re.compile(r" kvm_exit: (?:vcpu \d+ )?reason (.+?) rip ")
_LINE_OF = re.compile(r"-(\d+) +\[\d+\] .* kvm_exit: (?:vcpu \d+ )?reason (.+?) rip ")
_MOV_DR = re.compile(r"(?:read|write)_dr\d+$|DR_ACCESS$")
_OVERRUN = re.compile(r"^(?:overrun|dropped events|commit overrun): ([1-9]\d*)", re.MULTILINE)


def from_statistics(counters: Mapping[str, int], userspace: Mapping[str, int]) -> dict[str, int]:
    """Exits by reason as far as statistics tell them, of counters in which ``exits`` has no interrupts.

    Not every KVM counts those it hands to userspace, so *userspace* (KVM_EXIT name -> how often) is heard too. What is
    left is :data:`NOT_TOLD`; where more exits are told than there were, all are.
    """
    if "exits" not in counters:
        return {}
    found: dict[str, int] = {}
    for name, reason in _STATISTICS.items():
        if times := max(counters.get(name, 0), userspace.get(reason, 0)):
            found[reason] = times
    rest = counters["exits"] - sum(found.values())
    if rest < 0:
        return {NOT_TOLD: counters["exits"]}
    return {**found, **({NOT_TOLD: rest} if rest else {})}


class Tracer:
    """A tracing instance that sees the kvm_exit events of one thread and those it starts.

    Made by :func:`tracer`.
    """

    def __init__(self, here: Path) -> None:
        self._here = here

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Trace while it lasts, from an empty buffer."""
        (self._here / "trace").write_text("")
        (self._here / "tracing_on").write_text("1")
        try:
            yield
        finally:
            (self._here / "tracing_on").write_text("0")

    def watch(self, exits: int = 0) -> None:
        """Events again, after :meth:`off`, with room for so many *exits* of one run."""
        if exits > _FITTING:
            (self._here / "buffer_size_kb").write_text(str(exits * _EVENT_BYTES >> 10))
        (self._here / "events/kvm/kvm_exit/enable").write_text("1")

    def off(self) -> None:
        """No more events, from now on."""
        (self._here / "events/kvm/kvm_exit/enable").write_text("0")

    def exits(self) -> dict[str, int] | None:
        """Reason, as the kernel prints it -> how often; None if events were lost."""
        for stats in (self._here / "per_cpu").glob("cpu*/stats"):
            if _OVERRUN.search(stats.read_text()):
                return None
        return count(self.text())

    def text(self) -> str:
        """What was traced, as the kernel prints it."""
        return (self._here / "trace").read_text(errors="replace")


def count(text: str) -> dict[str, int]:
    """The kvm_exit events in the text of a trace, by reason."""
    found: dict[str, int] = {}
    for reason in _LINE.findall(text):
        found[reason] = found.get(reason, 0) + 1
    return found


def made_by_interrupts(text: str) -> dict[str, int]:
    """Exits by MOV DR in the text of a trace that there are only because of the host's interrupts, by reason.

    After the first the guest has the debug registers until it leaves again (rule ``debug-register-exits``), so a
    second one with nothing but interrupts between is theirs.
    """
    found: dict[str, int] = {}
    last: dict[str, str] = {}
    for thread, reason in _LINE_OF.findall(text):
        if reason in INTERRUPTS:
            continue
        if _MOV_DR.match(reason) and _MOV_DR.match(last.get(thread, "")):
            found[reason] = found.get(reason, 0) + 1
        last[thread] = reason
    return found


@contextlib.contextmanager
def tracer(root: Path = ROOT) -> Iterator[Tracer]:
    """A tracer for the calling thread and the threads it will start.

    Raises:
        MissingError: This user, or this kernel, cannot trace kvm; the message says why.
    """
    where = tracefs.find(root)
    if reason := permissions.locked_down(root):
        raise MissingError(reason)
    if where is None or not tracefs.may_write(where):
        raise MissingError(permissions.no_tracefs(where, root))
    if not (where / "events/kvm/kvm_exit").is_dir():
        raise MissingError(permissions.no_kvm_events(root))
    with tracefs.instance(where) as here:
        try:
            (here / "tracing_on").write_text("0")
            # The buffer stays as it is while it has room: to resize it takes longer than all the rest.
            for name, value in (
                ("options/event-fork", "1"),
                ("set_event_pid", str(threading.get_native_id())),
                ("events/kvm/kvm_exit/enable", "1"),
            ):
                (here / name).write_text(value)
        except OSError as error:
            raise MissingError(f"the kernel refuses to trace kvm_exit: {error.strerror}") from None
        yield Tracer(here)
