"""The programs that ship. Counts per step of ssdd are those of its docstring."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest

from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.guest import library
from worldswitch.guest import operations as ops
from worldswitch.guest.assemble import assemble
from worldswitch.guest.check import features
from worldswitch.guest.library.registry import SHIPPED
from worldswitch.guest.paths import places
from worldswitch.guest.program import Layout, Mode, Pages, Program, State
from worldswitch.guest.toml import load

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WANTED = (
    *("cr0-wp", "cr0-am", "cr0-ts", "cr4-pge", "cr4-smep", "cr4-smap", "cr4-pke", "cr4-cet", "cr0-wp+cet"),
    *("cpuid", "vmcall", "io", "msr", "page-touch", "exec-huge", "wp-fault", "smap", "context-switch", "nop"),
    *("kernexec", "ssdd", "recorded-wp", "access"),
)
VARIANTS = (
    *(
        "cr0-wp:single=true",
        "page-touch:size=2M,pages=8,huge=true",
        "page-touch:pages=1",
        "exec-huge:read=false,pages=1",
    ),
    *("wp-fault:fix=true", "wp-fault:wp=false", "ssdd:pairs=10,pcid=true,cet=true,extra_pairs=3", "kernexec:cet=true"),
    *(
        "context-switch:spaces=32,pcid=true,noflush=true,touch=true",
        "msr:name=0x10",
        "access:features=all",
        "smap:fault=no",
    ),
    *("recorded-wp:bit=CR4.PGE", "io:read=1,port=0x3f8", "single-step:user=false,dr6=false", "pkru:key=15"),
)


def test_what_ships() -> None:
    assert set(WANTED) <= set(library.names())
    assert library.names() == sorted(library.names())


@pytest.mark.parametrize("spec", [*library.names(), *VARIANTS])
def test_every_program_can_be_made_and_assembled_and_says_what_it_is(spec: str) -> None:
    program = library.program(spec)
    assert all((program.summary, program.unit, program.expect, program.source))
    assert len(program.unit) <= 25
    assert program.name.partition(":")[0] == spec.partition(":")[0]
    assert library.program(program.name) == program
    image = assemble(program)
    assert image.segments
    assert set(image.features) == features(program)


def test_a_program_is_named_with_the_parameters_that_differ() -> None:
    assert library.program("cr0-wp:single=false").name == "cr0-wp"
    assert library.program("page-touch:pages=8,size=2M").name == "page-touch:pages=8,size=2M"
    assert library.program("cr0-wp-cet").name == "cr0-wp+cet"


def test_programs_are_functions_too() -> None:
    from worldswitch.guest.library.toggles import cr0_wp

    assert cr0_wp(single=True) == library.program("cr0-wp:single=true")
    assert list(inspect.signature(cr0_wp).parameters) == ["single"]


def test_toggles_put_the_bit_back_and_keep_the_rest() -> None:
    for name, shipped in SHIPPED.items():
        if not name.startswith("cr") or name == "cr8":
            continue
        program = shipped.make()
        value = {0: program.state.cr0, 4: program.state.cr4}
        entered = dict(value)
        for place in places(program):
            write = place.operation
            assert isinstance(write, ops.WriteCr)
            for bit in write.set:
                value[write.cr] |= _mask(write.cr, bit)
            for bit in write.clear:
                value[write.cr] &= ~_mask(write.cr, bit)
            # Intel SDM volume 3, section 2.5: CET needs WP. ET must stay, or the write exits for that alone.
            assert not value[4] & _mask(4, "CET") or value[0] & _mask(0, "WP")
            assert value[0] & _mask(0, "ET")
        assert value == entered
        assert len(list(places(program))) == (4 if "+" in name else 2)


def _mask(register: int, name: str) -> int:
    return {"WP": 1 << 16, "AM": 1 << 18, "TS": 1 << 3, "ET": 1 << 4, "CET": 1 << 23, "PGE": 1 << 7, "TSD": 1 << 2,
            "FSGSBASE": 1 << 16, "SMEP": 1 << 20, "SMAP": 1 << 21, "PKE": 1 << 22}[name]  # fmt: skip


def counts(program: Program) -> Counter[str]:
    """Operations of one pass by word, and writes by register."""
    found: Counter[str] = Counter()
    for place in places(program):
        operation = place.operation
        found[operation.word + (str(operation.cr) if isinstance(operation, ops.WriteCr) else "")] += place.times
    return found


@pytest.mark.parametrize(
    ("spec", "cr0", "cr4", "switches"),
    [
        ("ssdd", 16, 0, 2),
        ("ssdd:pcid=true", 8, 0, 2 + 8),
        ("ssdd:cet=true", 16, 16, 2),
        ("ssdd:pcid=true,cet=true", 8, 8, 2 + 8),
        ("ssdd:extra_pairs=1", 16 + 4, 0, 2),
    ],
)
def test_a_step_of_ssdd_has_its_counts(spec: str, cr0: int, cr4: int, switches: int) -> None:
    found = counts(library.program(spec))
    # Three system calls and one #DB, whose handler reads and resets DR6.
    assert found["user"] == 3
    assert found["single-step"] == found["read-dr"] == found["write-dr"] == 1
    assert (found["write-cr0"], found["write-cr4"], found["switch-space"]) == (cr0, cr4, switches)


def test_pairs_of_ssdd_each_make_a_step_in_a_pass() -> None:
    program = library.program("ssdd:pairs=10,steps=7")
    assert (program.unit, program.default_n, len(program.spaces)) == ("10 steps", 7, 20)
    assert counts(program)["single-step"] == 10
    assert counts(program)["write-cr0"] == 10 * 16 - 9  # the handler has one for all


def test_the_recorded_program_is_the_one_of_the_recordings() -> None:
    # tests/data/README.md.
    program = library.program("recorded-wp")
    assert (program.mode, program.memory, program.layout) == (Mode.LONG, 2 << 20, Layout(0x1000, 0x2000, True))
    assert program.state == State(0x80050033, 0x20, 0x500)
    assert program.spaces[0].pages == (Pages(0, 0, "2M", flags=("W",)),)
    assert program.vcpus[0].body == (ops.WriteCr(0, toggle=("WP",)),)
    assert library.program("recorded-wp:bit=cr4.smep").vcpus[0].body == (ops.WriteCr(4, toggle=("SMEP",)),)
    image = assemble(program)
    tables = {gpa: int.from_bytes(data[:8], "little") for s in image.segments for gpa, data in [(s.gpa, s.data)]}
    assert (tables[0x2000], tables[0x3000], tables[0x4000]) == (0x3003, 0x4003, 0x83)
    assert image.entries[0].rip == 0x1000


def test_the_recorded_program_as_a_file_is_the_shipped_one() -> None:
    mine, shipped = load(EXAMPLES / "recorded-wp.toml"), library.program("recorded-wp")
    parts = ("unit", "mode", "state", "layout", "spaces", "memory", "vcpus", "default_n")
    assert [getattr(mine, part) for part in parts] == [getattr(shipped, part) for part in parts]


@pytest.mark.parametrize(
    ("spec", "error", "complaint"),
    [
        ("cr0-wq", UnknownNameError, "unknown program 'cr0-wq'; nearest: cr0-wp"),
        ("", UnknownNameError, "unknown program ''"),
        ("cr0-wp:sngle=true", UnknownNameError, "unknown parameter of cr0-wp 'sngle'; nearest: single"),
        ("hlt:x=1", UnknownNameError, "It has none"),
        ("cr0-wp:single", UsageError, "'single' is no parameter; write name:key=value"),
        ("cr0-wp:single=perhaps", UsageError, "single is true or false, not 'perhaps'"),
        ("cpuid:leaf=x", UsageError, "leaf is a whole number, not 'x'"),
        ("cpuid:leaf=0x100000000", UsageError, "vcpu 0 body 0: leaf 0x100000000 does not fit in 32 bits"),
        ("page-touch:size=4k", UnknownNameError, "unknown page size '4k'"),
        ("page-touch:pages=3", UsageError, "pages 3 is not a power of two; 4 is the next"),
        ("page-touch:pages=0", UsageError, "pages 0 is not from 1"),
        ("msr:name=LSTR", UnknownNameError, "nearest: LSTAR"),
        ("msr:name=LSTAR,write=true", UsageError, "say which value to write to LSTAR"),
        ("access:features=smpe", UnknownNameError, "unknown feature 'smpe'; nearest: smep"),
        ("recorded-wp:bit=EFER.NXE", UsageError, "give a bit of CR0 or CR4"),
        ("mine.toml:n=3", UsageError, "a program in a file has no parameters"),
        ("no-such-file.toml", MissingError, "cannot read no-such-file.toml"),
    ],
)
def test_what_is_no_program_is_refused(spec: str, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        library.program(spec)


def test_a_file_is_a_program() -> None:
    assert library.program(str(EXAMPLES / "wp-toggle.toml")).name == "wp-toggle"


def test_what_is_said_of_a_program() -> None:
    said = library.describe("cr0-wp")
    assert said.startswith("Clears CR0.WP and sets it again")
    assert "\n\nExpect: 0 exits per pair on Intel with EPT from 6.4 on" in said
    assert "\n\nSource: Linux commit fb509f76acc8" in said
    assert [tuple(p) for p in library.parameters("page-touch")][:2] == [("size", "4K"), ("pages", 64)]
