"""Write the text that tracefs ``trace`` shows, as people and our own reader read it.

Differences from the kernel's: no column of interrupt flags (sources do not keep them), nine decimals where
tracefs shows six, so that nothing is lost, and the thread group in parentheses where the source knows it
(the kernel's ``record-tgid`` option). Documentation/trace/ftrace.rst describes the form.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import numpy as np

from worldswitch.errors import printable
from worldswitch.record.trace import UNKNOWN_PID, Batch, EventSource
from worldswitch.trace.writers.catalog import Catalog, Written
from worldswitch.trace.writers.printfmt import Printer, plain_printer, printer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER = (
    "# tracer: nop\n#\n"
    "#           TASK-PID    {tgid}CPU#     TIMESTAMP  FUNCTION\n"
    "#              | |      {tgid_bar}  |          |         |\n"
)  # fmt: skip


def write_ftrace_text(source: EventSource, stream: IO[str]) -> Written:
    """Write every event of *source* as a line."""
    written = Written()
    catalog = Catalog(source)
    printers: dict[str, Printer] = {}
    tgids: bool | None = None
    for batch in source.batches():
        if tgids is None:
            tgids = source.meta.vm_identity == "tgid" or bool((batch.pid != UNKNOWN_PID).any())
            stream.write(_header(tgids))
        bodies = np.empty(len(batch), object)
        for index, name in enumerate(batch.events):
            rows = np.flatnonzero(batch.order == index)
            if not len(rows):
                continue
            columns = batch.tables[index]
            if name not in printers:
                form = None if list(columns) == ["text"] else catalog.format(name, columns)
                printers[name] = printer(form) if form else plain_printer
            bodies[rows] = printers[name](columns, len(rows))
        stream.write(_text(batch, bodies.tolist(), source.meta.comms, tgids))
        written.events += len(batch)
    if tgids is None:
        stream.write(_header(False))
    return written


def _header(tgids: bool) -> str:
    return _HEADER.format(tgid="TGID     " if tgids else "", tgid_bar="   |     " if tgids else "")


def _text(batch: Batch, bodies: list[str], comms: dict[int, str], tgids: bool) -> str:
    names = [printable(name.removesuffix(":unparsed").rpartition(":")[2]) for name in batch.events]
    labels = np.array(names, object)[batch.order].tolist()
    seconds, ns = np.divmod(batch.time, 1_000_000_000)
    rows = zip(_heads(batch, seconds, comms, tgids), _nine_digits(ns), labels, bodies, strict=True)
    return "".join([f"{head}{rest}: {label}: {body}\n" for head, rest, label, body in rows])


def _nine_digits(values: NDArray[np.int64]) -> list[str]:
    digits = values[:, None] // 10 ** np.arange(8, -1, -1) % 10 + ord("0")
    texts: list[str] = digits.astype(np.uint8).view("S9").ravel().astype("U9").tolist()
    return texts


def _heads(batch: Batch, seconds: NDArray[np.int64], comms: dict[int, str], tgids: bool) -> list[str]:
    """What stands before the decimals, made once per run of events of one thread on one CPU in one second."""
    changes = np.ones(len(batch), bool)
    keys = (batch.tid, batch.pid, batch.cpu, seconds)
    changes[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    firsts = np.flatnonzero(changes)
    made: dict[tuple[int, int, int], str] = {}
    heads = np.empty(len(firsts), object)
    tids, pids, cpus, wholes = (key[firsts].tolist() for key in keys)
    for at, (tid, pid, cpu, whole) in enumerate(zip(tids, pids, cpus, wholes, strict=True)):
        if (tid, pid, cpu) not in made:
            made[tid, pid, cpu] = _head(tid, pid, cpu, comms, tgids)
        heads[at] = f"{made[tid, pid, cpu]}{whole:5}."
    repeated: list[str] = np.repeat(heads, np.diff(np.append(firsts, len(batch)))).tolist()
    return repeated


def _head(tid: int, pid: int, cpu: int, comms: dict[int, str], tgids: bool) -> str:
    comm = comms.get(tid) or ("<idle>" if tid == 0 else "<...>")
    where = f"[{cpu:03}] " if cpu >= 0 else ""
    group = ("(-------) " if pid == UNKNOWN_PID else f"({pid:7}) ") if tgids else ""
    return f"{printable(comm):>16}-{tid:<7} {group}{where}"
