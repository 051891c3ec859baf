from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import perf_recording, text_of, traces
from worldswitch.record.formats import EventFormat, parse_format
from worldswitch.record.trace import Columns, Trace
from worldswitch.trace.writers.printfmt import plain_printer, printer

FIELDS = [("a", "u4", 4), ("b", "i4", 4), ("c", "u8", 8), ("data", "bytes", 4), ("name", "dynamic", 4)]


def event(print_format: str) -> EventFormat:
    text = text_of("kvm_x", 1, FIELDS).partition("print fmt:")[0]
    return parse_format(f"{text}print fmt: {print_format}\n", "kvm")


def one(a: int = 0, b: int = 0, c: int = 0, data: bytes = b"\0\0\0\0", name: str = "") -> Columns:
    names = np.empty(1, object)
    names[0] = name
    return {
        "a": np.array([a], "u4"),
        "b": np.array([b], "i4"),
        "c": np.array([c], "u8"),
        "data": np.frombuffer(data, np.uint8).reshape(1, -1),
        "name": names,
    }


@pytest.mark.parametrize(
    ("print_format", "columns", "expected"),
    [
        ('"plain"', one(), "plain"),
        (
            '"a %u b %d c 0x%llx", REC->a, REC->b, REC->c',
            one(7, -3, 2**64 - 1),
            "a 7 b -3 c 0xffffffffffffffff",
        ),
        ('"%x", REC->b', one(b=-1), "ffffffff"),
        ('"%d", REC->a', one(a=2**32 - 1), "-1"),
        ('"%016lx|%5u|%-5u|", REC->c, REC->a, REC->a', one(a=42, c=255), "00000000000000ff|   42|42   |"),
        ('"%s", REC->a ? "yes" : "no"', one(a=1), "yes"),
        ('"%s", !REC->a ? "yes" : "no"', one(a=1), "no"),
        ('"%s", REC->a == 1 && REC->b != 2 || REC->c ? "x" : "y"', one(a=1, b=3), "x"),
        ('"%x", (unsigned int)(REC->c >> 4) & 0xfUL', one(c=0xAB), "a"),
        ('"%u", REC->a + 2 * 3 - 1', one(a=1), "6"),
        ('"%s", __print_symbolic(REC->a, { 0, "zero" }, { 0x1, "one" })', one(a=1), "one"),
        ('"%s", __print_symbolic(REC->a, { 0, "zero" })', one(a=0x23), "0x23"),
        ('"%s", __print_flags(REC->a, "|", { (1 << 0), "P" }, { 1UL << 1, "W" })', one(a=7), "P|W|0x4"),
        ('"%s", __print_symbolic(REC->a, { SOME_ENUM, "x" }, { 2, "two" })', one(a=2), "two"),
        ('"%s", __print_hex(REC->data, 3)', one(data=b"\x0f\x22\xc0\x90"), "0f 22 c0"),
        ('"%x", REC->data[1]', one(data=b"\x0f\x22\xc0\x90"), "22"),
        ('"<%s>", __get_str(name)', one(name="a\x1b[31m"), "<a\\x1b[31m>"),
        ('"100%% %c", REC->a', one(a=65), "100% A"),
        ('"a" " b", ', one(), "a=0 b=0 c=0 data=00000000 name="),
        ('"%s", some_function(REC->a)', one(a=1), "a=1 b=0 c=0 data=00000000 name="),
        ('"%*pbl", REC->a', one(a=1), "a=1 b=0 c=0 data=00000000 name="),
        ('"%999999999d", REC->a', one(a=1), "a=1 b=0 c=0 data=00000000 name="),
        ('"%u", REC->missing', one(a=1), "a=1 b=0 c=0 data=00000000 name="),
        ('"%s", ' + "(" * 5000 + "1" + ")" * 5000, one(a=1), "a=1 b=0 c=0 data=00000000 name="),
        ('"%u", 1 << 99999999999', one(), str(1 << (99999999999 & 63) & 0xFFFFFFFF)),
        ('"%u", REC->a / 0', one(a=5), "5"),
    ],
)
def test_prints_as_c_would(print_format: str, columns: Columns, expected: str) -> None:
    assert printer(event(print_format))(columns, 1) == [expected]


def test_rows_that_repeat_print_alike() -> None:
    columns = {name: np.repeat(column, 9, axis=0) for name, column in one(a=3).items()}
    columns["a"][4] = 8
    assert printer(event('"%u", REC->a'))(columns, 9) == ["3"] * 4 + ["8"] + ["3"] * 4


def test_a_table_of_texts_prints_the_text() -> None:
    assert plain_printer({"text": np.array(["as it was"], object)}, 1) == ["as it was"]


@settings(max_examples=300, deadline=None)
@given(st.text("\"%dux,()?:{}<>&|+-*/!~ 0189REC->abname\\[]'s_", max_size=60))
def test_any_print_format_prints_something(print_format: str) -> None:
    (line,) = printer(event(f'"{print_format}'))(one(5, -5, 5), 1)
    assert isinstance(line, str)


@settings(max_examples=50, deadline=None)
@given(traces())
def test_every_event_of_any_trace_prints_one_line(trace: Trace) -> None:
    for batch in trace.batches():
        for index, (name, table) in enumerate(zip(batch.events, batch.tables, strict=True)):
            n = int((batch.order == index).sum())
            for lines in (printer(trace.formats[name])(table, n), plain_printer(table, n)):
                assert len(lines) == n
                assert not any("\n" in line for line in lines)


@pytest.mark.needs("perf")
@pytest.mark.parametrize(
    "name", ["svm-5.10-shadow/wp.perf.data.zst", "vmx-5.10-ept/wp.perf.data", "svm-7.2-npt/wp.perf.data.zst"]
)
def test_lines_are_those_perf_script_prints(name: str, plain_recording, tmp_path: Path) -> None:
    script = subprocess.run(
        ["perf", "script", "-F", "event,trace", "-i", plain_recording(name)], capture_output=True, check=True
    )
    theirs = [(found[1], found[2].rstrip()) for found in re.finditer(r"kvm\w*:(\w+): ?(.*)", script.stdout.decode())]
    trace = perf_recording(name)
    ours = []
    for batch in trace.batches():
        lines = [
            iter(printer(trace.formats[event])(table, int((batch.order == index).sum())))
            for index, (event, table) in enumerate(zip(batch.events, batch.tables, strict=True))
        ]
        ours += [(batch.events[index], next(lines[index]).rstrip()) for index in batch.order.tolist()]
    # libtraceevent takes an enumerator it does not know for 0, and so names a bit that is another's.
    differ = {mine[0] for mine, other in zip(ours, theirs, strict=True) if mine != other}
    assert differ <= {"kvm_apicv_inhibit_changed"}
