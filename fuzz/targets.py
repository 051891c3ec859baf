"""What is fuzzed: a function per reader, from bytes to an account, and guest programs. Only WorldswitchError comes out.

``guided.py`` lets atheris choose the bytes, ``run.py`` runs all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path

from worldswitch.cli.analyze import describe, to_json
from worldswitch.errors import WorldswitchError
from worldswitch.guest import library
from worldswitch.guest.assemble import assemble
from worldswitch.guest.toml import dumps, loads
from worldswitch.record.trace import Trace
from worldswitch.trace import open_trace
from worldswitch.trace.account import Bookkeeper
from worldswitch.trace.readers import FORMATS
from worldswitch.trace.readers.source import Input
from worldswitch.trace.writers.perfdata import PerfOptions, write_perfdata
from worldswitch.trace.writers.tracedat import TraceDatOptions, write_tracedat

DATA = Path(__file__).parents[1] / "tests" / "data"
SMALL = DATA / "vmx-6.1-ept" / "kvmstat.perf.data"
PROGRAMS = "programs"
"""Name of the target that is no reader of traces."""
_DRAW_ONE_IN = 16


def target(reader: str) -> Callable[[bytes], None]:
    """A function that reads its argument with *reader* and accounts for what comes out."""
    if reader == PROGRAMS:
        return _one_program
    module = import_module(f"worldswitch.trace.readers.{reader}")
    opened = getattr(module, FORMATS[reader][0])

    def one_input(data: bytes) -> None:
        try:
            source = Input.from_bytes(data)
            if not module.sniff(source.head):
                return
            events = opened(source)
            book = Bookkeeper()
            for batch in events.batches(None):
                book.add(book.pairs.feed(batch))
            result = book.close(events.meta, None, getattr(events, "reason_names", None))
        except WorldswitchError:
            return
        json.dumps(to_json(result))
        if len(data) % _DRAW_ONE_IN == 0:
            shown = describe(result)
            if not shown.replace("\n", "").isprintable():
                raise AssertionError(f"unprintable output {shown!r}")

    return one_input


def _one_program(data: bytes) -> None:
    """What is a program is written, read back equal, and assembled or refused."""
    try:
        program = loads(data.decode("utf-8", "surrogatepass"))
        again = loads(dumps(program))
    except (WorldswitchError, UnicodeDecodeError):
        return
    if again != program:
        raise AssertionError("a program is not read back equal")
    with suppress(WorldswitchError):
        assemble(program)


def seeds(reader: str) -> Iterator[bytes]:
    """Small whole inputs of *reader*, to start mutating from."""
    if reader == PROGRAMS:
        for name in library.names():
            if name != "access":
                yield dumps(library.program(name)).encode()
        return
    trace = _shortened(SMALL)
    if reader == "perfdata":
        yield SMALL.read_bytes()
        for options in (PerfOptions(), PerfOptions(identifier=True, level=3), PerfOptions(pipe=True)):
            yield _written(write_perfdata, trace, options)
        yield _written(write_perfdata, trace, PerfOptions(pipe=True, level=1))
    elif reader == "tracedat":
        for options in (TraceDatOptions(version=6), TraceDatOptions(version=7)):
            yield _written(write_tracedat, trace, options)
    elif reader == "strace":
        yield from _heads("*/strace.txt")
    elif reader == "tooltables":
        yield from _heads("*/kvmstat.txt")
    else:
        yield from _heads("*/trace.txt")
        yield from _heads("svm-*/wp.*.head.txt")
        yield from _heads("pasted/*.eml")


def _written(write: Callable[..., object], trace: Trace, options: object) -> bytes:
    stream = io.BytesIO()
    write(trace, stream, options)
    return stream.getvalue()


def _shortened(path: Path) -> Trace:
    """The first events of a recording."""
    trace = open_trace(path)
    return Trace([batch.cut(60)[0] for batch in islice(trace.batches(), 1)], trace.meta, trace.formats)


def _heads(pattern: str) -> Iterator[bytes]:
    for path in sorted(DATA.glob(pattern)):
        yield path.read_bytes()[:3000]
