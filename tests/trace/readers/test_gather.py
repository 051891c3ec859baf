from __future__ import annotations

import struct

import numpy as np
import pytest

from worldswitch.record.formats import parse_format
from worldswitch.trace.readers import gather

RECORD = struct.pack("<HBBi", 7, 0, 0, 1) + bytes(range(0x80, 0x80 + 24)) + b"name\0xyz" + bytes(4)


def column(declaration: str, offset: int, size: int, signed: int = 0, record: bytes = RECORD):
    """The field of two records that lie one behind the other."""
    text = f"name: x\nID: 7\nformat:\n\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n"
    assert len(record) % 4 == 0
    words = memoryview(bytearray(record * 2)).cast("I")
    starts = np.array([0, len(record) // 4], np.int64)
    return gather.column(words, starts, parse_format(text).fields[0])


@pytest.mark.parametrize("offset", range(8, 17))
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("signed", [0, 1])
def test_integers_of_any_size_at_any_place(offset: int, size: int, signed: int) -> None:
    name = f"{'s' if signed else 'u'}{8 * size} f"
    expected = int.from_bytes(RECORD[offset : offset + size], "little", signed=bool(signed))
    values = column(name, offset, size, signed)
    assert values.tolist() == [expected] * 2
    assert values.dtype == np.dtype(f"{'i' if signed else 'u'}{size}")


def test_booleans() -> None:
    assert column("bool f", 8, 1).tolist() == [True, True]
    assert column("bool f", 8, 1, record=bytes(len(RECORD))).tolist() == [False, False]


def test_byte_arrays() -> None:
    values = column("u8 insn[15]", 9, 15)
    assert values.shape == (2, 15)
    assert values[1].tobytes() == RECORD[9:24]


def test_texts_end_at_their_nul() -> None:
    assert column("char comm[8]", 32, 8).tolist() == ["name", "name"]


@pytest.mark.parametrize(("declaration", "offset_of_text"), [("__data_loc char[] f", 12), ("__rel_loc char[] f", 0)])
def test_dynamic_texts(declaration: str, offset_of_text: int) -> None:
    record = RECORD[:8] + struct.pack("<I", 5 << 16 | offset_of_text) + b"text\0..." + bytes(4)
    assert column(declaration, 8, 4, record=record).tolist() == ["text", "text"]


def test_dynamic_arrays_are_hexadecimal() -> None:
    record = RECORD[:8] + struct.pack("<I", 4 << 16 | 12) + b"\1\2\xfe\xff"
    assert column("__data_loc u8[] f", 8, 4, record=record).tolist() == ["0102feff"] * 2


def test_a_dynamic_text_outside_its_record_is_empty() -> None:
    record = RECORD[:8] + struct.pack("<I", 5 << 16 | 0xFFF0) + bytes(8)
    assert column("__data_loc char[] f", 8, 4, record=record).tolist() == ["", ""]


def test_no_records_make_empty_columns() -> None:
    text = "name: x\nID: 7\n\tfield:u64 f;\toffset:8;\tsize:8;\tsigned:0;\n"
    text += "\tfield:u8 b[3];\toffset:16;\tsize:3;\tsigned:0;\n"
    columns = gather.columns(memoryview(bytes(8)).cast("I"), np.empty(0, np.int64), parse_format(text))
    assert {name: values.shape for name, values in columns.items()} == {"f": (0,), "b": (0, 3)}
