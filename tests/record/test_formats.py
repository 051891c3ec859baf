from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import TraceFormatError
from worldswitch.record.formats import Kind, by_name, parse_format

DATA = Path(__file__).parents[1] / "data"


def fields(*lines: str):
    return parse_format("name: x\nID: 5\nformat:\n" + "\n".join(f"\t{line}" for line in lines) + "\n", "kvm").fields


@pytest.mark.parametrize(
    ("declaration", "size", "signed", "kind", "dtype"),
    [
        ("u32 exit_reason", 4, 0, Kind.INT, "u4"),
        ("s64 delta", 8, 1, Kind.INT, "i8"),
        ("unsigned long guest_rip", 8, 0, Kind.INT, "u8"),
        ("short value", 2, 1, Kind.INT, "i2"),
        ("bool write", 1, 0, Kind.BOOL, "bool"),
        ("_Bool write", 1, 0, Kind.BOOL, "bool"),
        ("__u8 insn[15]", 15, 0, Kind.BYTES, "u1"),
        ("unsigned char insn[15]", 15, 0, Kind.BYTES, "u1"),
        ("char comm[16]", 16, 0, Kind.TEXT, "object"),
        ("__data_loc char[] name", 4, 1, Kind.DYNAMIC, "object"),
        ("__rel_loc char[] name", 4, 1, Kind.RELATIVE, "object"),
        ("struct odd thing", 24, 0, Kind.BYTES, "u1"),
        ("void * ptr", 8, 0, Kind.INT, "u8"),
    ],
)
def test_how_a_declaration_becomes_a_column(declaration: str, size: int, signed: int, kind: Kind, dtype: str) -> None:
    (field,) = fields(f"field:{declaration};\toffset:8;\tsize:{size};\tsigned:{signed};")
    assert (field.kind, field.dtype, field.size, field.offset) == (kind, dtype, size, 8)
    assert field.name in declaration


def test_common_fields_are_left_out() -> None:
    assert fields("field:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;") == ()


@pytest.mark.parametrize("path", sorted(DATA.glob("*/kvm_exit.format")), ids=lambda path: path.parent.name)
def test_the_kernels_own_kvm_exit(path: Path) -> None:
    event = parse_format(path.read_text(), "kvm")
    assert event.name == "kvm_exit"
    names = {field.name for field in event.fields}
    assert {"exit_reason", "guest_rip", "isa", "info1", "info2", "intr_info", "error_code", "vcpu_id"} <= names
    assert all(field.offset + field.size <= event.size for field in event.fields)


def test_two_systems_may_share_a_name() -> None:
    one, other, third = (
        parse_format(f"name: {name}\nID: {number}\n", system)
        for name, number, system in (("x", 1, "kvm"), ("x", 2, "xen"), ("y", 3, "xen"))
    )
    assert by_name([one, other, third]) == {"x": one, "xen:x": other, "y": third}


@pytest.mark.parametrize(
    "text",
    ["", "name: x\n", "ID: 4\n", "name: x\nID: many\n", "name: x\nID: 1\n\tfield:;\toffset:8;\tsize:4;\n"],
)
def test_what_is_no_format_is_refused(text: str) -> None:
    with pytest.raises(TraceFormatError):
        parse_format(text)


@given(st.text(max_size=200), st.integers(0, 400))
def test_any_text_is_a_format_or_refused(noise: str, at: int) -> None:
    text = (DATA / "vmx-6.1-ept" / "kvm_exit.format").read_text()
    try:
        event = parse_format(text[:at] + noise + text[at + len(noise) :])
    except TraceFormatError as error:
        assert str(error).isprintable()
    else:
        assert event.size < 1 << 18
