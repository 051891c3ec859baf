"""What no guest could do is refused, with its place. Rules: Intel SDM volume 3, sections 2.5, 4.1 and 4.5."""

from __future__ import annotations

from typing import Any

import pytest

from worldswitch.guest import library
from worldswitch.guest import operations as ops
from worldswitch.guest.check import MAX_OPERATIONS, features
from worldswitch.guest.image import MAX_VALUES
from worldswitch.guest.layout import WINDOWS
from worldswitch.guest.operations import Operation
from worldswitch.guest.program import Handler, Layout, Mode, Pages, Program, ProgramError, Space, State, Vcpu
from worldswitch.x86.registers import CR4, bit_mask

PAE = State(efer=0x800)
FLAT = State(0x11, 0, 0)
WINDOW = WINDOWS[Mode.LONG]


def make(*body: Operation, pages: tuple[Pages, ...] = (), **more: Any) -> Program:
    parts: dict[str, Any] = {"vcpus": (Vcpu(body),), "spaces": (Space("main", pages),)}
    return Program(**{"name": "p", "summary": "", "unit": "pass", **parts, **more})


def refused(complaint: str, *body: Operation, **more: Any) -> None:
    with pytest.raises(ProgramError, match=complaint) as raised:
        make(*body, **more)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("pages", "complaint"),
    [
        ((Pages(0x1000, 0x200000, count=2), Pages(0x2000, 0x300000)), "1: 0x2000 to 0x2fff overlaps pages 0, 0x1000"),
        ((Pages(0x200000, 0x200000, "2M"), Pages(0x3FF000, 0x200000)), "pages 1: 0x3ff000 .* overlaps pages 0"),
        ((Pages(WINDOW, 0x200000),), "pages 0: .* overlaps the program's own window"),
        ((Pages(0x1001, 0x200000),), "pages 0: va 0x1001 is not a multiple of the page size 4K"),
        ((Pages(0x1000, 0x200000, "2M"),), "pages 0: va 0x1000 is not a multiple of the page size 2M"),
        ((Pages(0x1000, 0x200001),), "pages 0: pa 0x200001 is not a multiple"),
        ((Pages(0x8000_0000_0000, 0x200000),), "pages 0: va 0x800000000000 .* is not canonical"),
        ((Pages(0x7FFF_FFFF_F000, 0x200000, count=2),), "is not canonical"),
        ((Pages(0xFFFF_7FFF_FFFF_F000, 0x200000),), "is not canonical"),
        ((Pages(-0x1000, 0x200000),), "is not canonical"),
        ((Pages(0x1000, 0x400000),), "lies outside of memory, which ends at 0x400000"),
        ((Pages(0x1000, 0x3FF000, count=2),), "lies outside of memory"),
        ((Pages(0x1000, 0x1FF000),), "pa 0x1ff000 is the program's own memory"),
        ((Pages(0x1000, 0x200000, count=0),), "count 0 is not from 1"),
        ((Pages(0x1000, 0x200000, "4k"),), "unknown page size '4k'"),
        ((Pages(0x1000, 0x200000, flags=("X",)),), "unknown flag of a page-table entry 'X'; nearest: NX"),
        ((Pages(0x1000, 0x200000, flags=("P",)),), "flag P is not given"),
        ((Pages(0x1000, 0x200000, flags=("W", "W")),), "flag W is named twice"),
        ((Pages(0x1000, 0x200000, key=16),), "key 16 is not from 0 to 15"),
        ((Pages(0x1000, "x"),), "pages 0: pa must be a whole number"),
        (([Pages(0x1000, 0x200000)],), "space 0: each item of pages must be a table"),
    ],
)  # fmt: skip
def test_pages_that_cannot_be(pages: Any, complaint: str) -> None:
    refused(complaint, pages=pages)


def test_addresses_are_wider_with_la57() -> None:
    high = (Pages(0x8000_0000_0000, 0x200000),)
    assert features(make(pages=high, state=State(cr4=0x1020))) == {"nx", "la57"}


def test_32_bit_modes_have_no_large_addresses_keys_or_long_pages() -> None:
    refused("va 0x100000000 .* is not canonical", pages=(Pages(1 << 32, 0x200000),), mode=Mode.PAE, state=PAE)
    refused("mode long only", pages=(Pages(0x1000, 0x200000, key=1),), mode=Mode.PAE, state=PAE)
    refused("unknown page size '1G'", pages=(Pages(0, 0, "1G"),), mode=Mode.PAE, state=PAE)
    refused("no paging, so no pages", pages=(Pages(0x1000, 0x200000),), mode=Mode.FLAT, state=FLAT)
    refused("8 bytes at once need mode long", ops.Load(0x1000), mode=Mode.FLAT, state=FLAT)
    refused("needs mode long", ops.ReadPkru(), mode=Mode.PAE, state=PAE)
    refused("write-entry needs paging", ops.WriteEntry("main", 0), mode=Mode.FLAT, state=FLAT)
    refused("CR8 exists in mode long only", ops.WriteCr(8, value=1), mode=Mode.PAE, state=PAE)
    refused("value 0x100000000 does not fit in 32 bits", ops.WriteCr(0, value=1 << 32), mode=Mode.PAE, state=PAE)


@pytest.mark.parametrize(
    ("state", "mode", "complaint"),
    [
        (State(cr0=0x33), Mode.LONG, "mode long needs CR0.PG"),
        (State(cr4=0), Mode.LONG, "mode long needs CR4.PAE"),
        (State(efer=0x800), Mode.LONG, "mode long needs EFER.LME"),
        (State(), Mode.PAE, "EFER.LME cannot be set in mode pae"),
        (State(0x80050033, 0, 0), Mode.FLAT, "CR0.PG cannot be set in mode flat"),
        (State(cr0=0x80050023), Mode.LONG, "CR0.ET is always 1"),
        (State(cr0=0xA0050033), Mode.LONG, "CR0.NW needs CR0.CD"),
        (State(cr0=0x80040033, cr4=0x800020), Mode.LONG, "CR4.CET needs CR0.WP"),
        (State(cr0=0x80050033 | 1 << 40), Mode.LONG, "has bit 40, which no manual names"),
        (State(cr4=-1), Mode.LONG, "does not fit in 64 bits"),
    ],
)
def test_entry_states_that_cannot_be(state: State, mode: Mode, complaint: str) -> None:
    refused(f"state: .*{complaint}", state=state, mode=mode)


@pytest.mark.parametrize(
    ("operation", "complaint"),
    [
        (ops.WriteCr(0, set=("SMEP",)), "SMEP is a bit of CR4, not of CR0"),
        (ops.WriteCr(4, set=("SMPE",)), "unknown bit of CR4 'SMPE'; nearest: .*SMEP"),
        (ops.WriteCr(0, set=("WP",), toggle=("WP",)), "WP is named twice"),
        (ops.WriteCr(0, set=("WP",), clear=("bit 16",)), "bit 16 is named twice"),
        (ops.WriteCr(0), "give either a value, or bits"),
        (ops.WriteCr(0, value=1, set=("WP",)), "give either a value, or bits"),
        (ops.WriteCr(3, value=1), "CR3: switch-space"),
        (ops.WriteCr(8, set=("bit 1",)), "CR8 has no named bits"),
        (ops.WriteCr(0, value=1 << 64), "does not fit in 64 bits"),
        (ops.ReadCr(1), "there is no CR1"),
        (ops.SwitchSpace("mian"), "unknown space 'mian'; nearest: main"),
        (ops.SwitchSpace("main", 4096), "pcid 4096 is not from 0 to 4095"),
        (ops.SwitchSpace("main", 1), "pcid and noflush need CR4.PCIDE"),
        (ops.SwitchSpace("main", noflush=True), "pcid and noflush need CR4.PCIDE"),
        (ops.Invpcid(4), "type 4 is not from 0 to 3"),
        (ops.Load(0, size=3), "size 3 is none of"),
        (ops.Load(0, stride=8, span=3), "span 3 is not a power of two"),
        (ops.Load(0, stride=8), "stride and span go together"),
        (ops.Load(0, span=8), "stride and span go together"),
        (ops.Load(-1), "do not fit in 64 bits"),
        (ops.Load((1 << 64) - 4), "do not fit in 64 bits"),
        (ops.Store(0, value=256, size=1), "value 0x100 does not fit in 8 bits"),
        (ops.Store(WINDOW + 8), "store at .* reaches the program's own window"),
        (ops.Store(WINDOW - 8, stride=8, span=2), "reaches the program's own window"),
        (ops.Fetch(WINDOW), "fetch at .* reaches the program's own window"),
        (ops.Lmsw(1 << 16), "does not fit in 16 bits"),
        (ops.ReadMsr(1 << 32), "does not fit in 32 bits"),
        (ops.Vmcall(args=(1, 2, 3, 4, 5)), "at most 4 args"),
        (ops.In(65536), "port 65536 is not from 0 to 65535"),
        (ops.Out(0, 256), "does not fit in 8 bits"),
        (ops.In(0, 8), "size 8 is none of 1, 2, 4"),
        (ops.ReadDr(4), "there is no DR4 here"),
        (ops.Nop(0), "count 0 is not from 1"),
        (ops.Repeat(0, (ops.Nop(),)), "count 0 is not from 1"),
        (ops.Repeat(10**9, (ops.Nop(),)), "count 1000000000 is not from 1 to 1000000; -n gives more"),
        (ops.Repeat(2, ()), "nothing to repeat"),
        (ops.User((ops.Hlt(),)), "0: hlt cannot run at CPL 3; a user block takes nop"),
        (ops.User((ops.Load(0, user=True),)), "is at CPL 3 already"),
        (ops.Load("x"), "va must be a whole number, not 'x'"),
        (ops.Load(True), "va must be a whole number, not True"),
        (ops.Cpuid(keep=1), "keep must be true or false"),
        (ops.Repeat(2, [ops.Nop()]), "body must be a tuple, not list"),
        (Operation(), "Operation is no operation"),
    ],
)  # fmt: skip
def test_operations_that_cannot_be(operation: Operation, complaint: str) -> None:
    refused(f"vcpu 0 body 0.*{complaint}", operation)


def test_nested_repeats_are_bounded_together() -> None:
    inner = ops.Repeat(1000, (ops.Nop(),))
    refused("vcpu 0 body 0.0.0: repeats make more than 1000000", ops.Repeat(1001, (inner,)))
    make(ops.Repeat(998, (inner,)))
    deep: Operation = ops.Nop()
    for _ in range(9):
        deep = ops.Repeat(1, (deep,))
    refused("blocks are nested deeper than 8", deep)


def test_a_program_has_a_bounded_number_of_operations_and_kept_values() -> None:
    refused(f"more than {MAX_OPERATIONS} operations", *[ops.Nop()] * (MAX_OPERATIONS + 1))
    refused(f"body {MAX_VALUES}: .*{MAX_VALUES} kept values", *[ops.Cpuid(keep=True)] * (MAX_VALUES + 1))


@pytest.mark.parametrize(
    ("write", "state", "mode", "complaint"),
    [
        (ops.WriteCr(0, clear=("PG",)), PAE, Mode.PAE, "CR0.PG would leave mode pae"),
        (ops.WriteCr(4, toggle=("PAE",)), PAE, Mode.PAE, "CR4.PAE would leave mode pae"),
        (ops.WriteCr(0, value=0x11), PAE, Mode.PAE, "would leave mode pae"),
        (ops.WriteCr(0, set=("PG",)), FLAT, Mode.FLAT, "CR0.PG would leave mode flat"),
        (ops.WriteCr(0, clear=("PE",)), FLAT, Mode.FLAT, "CR0.PE would leave mode flat"),
    ],
)
def test_a_write_may_not_take_the_code_away(write: Operation, state: State, mode: Mode, complaint: str) -> None:
    refused(complaint, write, state=state, mode=mode)


def test_in_64_bit_mode_such_a_write_faults_and_is_allowed() -> None:
    make(ops.WriteCr(0, clear=("PG",)), ops.WriteCr(4, clear=("PAE",)))


ENTRY_PAGES = (Pages(0x400000, 0x200000, count=2), Pages(0x800000, 0x200000, "2M"))


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (ops.WriteEntry("other", 0x400000, set=("W",)), "unknown space 'other'"),
        (ops.WriteEntry("main", 0x402000, set=("W",)), "space main has no pages at 0x402000"),
        (ops.WriteEntry("main", 0x800000, set=("W",)), "in a 2M page: its lowest entry is of level 2, not 1"),
        (ops.ReadEntry("main", 0x800000), "in a 2M page"),
        (ops.WriteEntry("main", 0x400000, 5, set=("W",)), "level 5 is not from 1 to 4"),
        (ops.WriteEntry("main", 0x400000), "it changes nothing"),
        (ops.WriteEntry("main", 0x400000, set=("R",)), "unknown flag of a page-table entry 'R'"),
        (ops.WriteEntry("main", 0x400000, set=("W",), clear=("W",)), "W is named twice"),
        (ops.WriteEntry("main", 0x400000, pa=0x800), "pa 0x800 is not a multiple of 0x1000"),
        (ops.WriteEntry("main", 0x400000, pa=1 << 52), "below 2\\*\\*52"),
        (ops.WriteEntry("main", 0x400000, key=16), "key 16 is not from 0 to 15"),
    ],
)
def test_entries_that_are_not_there(entry: Operation, complaint: str) -> None:
    refused(complaint, entry, pages=ENTRY_PAGES)


def test_an_entry_that_maps_the_program_too_may_not_be_written() -> None:
    pages = (Pages(WINDOW - 0x40000000, 0x200000),)
    refused("maps the program's own code too", ops.WriteEntry("main", pages[0].va, 4, clear=("P",)), pages=pages)
    make(ops.WriteEntry("main", pages[0].va, 3, clear=("P",)), pages=pages)


def test_handlers() -> None:
    refused("vcpu 0 handler 0: vector 32 is not an exception", vcpus=(Vcpu(handlers=(Handler(32),)),))
    refused("handler 1: vector 6 has a handler already", vcpus=(Vcpu(handlers=(Handler(6), Handler(6))),))
    for operation in (ops.User(), ops.SingleStep(), ops.Meet(), ops.Load(0, user=True)):
        refused(
            "vcpu 0 handler 6 fix 0: .*cannot run in a handler", vcpus=(Vcpu(handlers=(Handler(6, fix=(operation,)),)),)
        )


def test_vcpus_meet_equally_often() -> None:
    twice = ops.Repeat(2, (ops.Meet(),))
    refused("vcpu 1 body: it meets 1 times, vcpu 0 2 times", vcpus=(Vcpu((twice,)), Vcpu((ops.Meet(),))))
    make(vcpus=(Vcpu((twice,)), Vcpu((ops.Meet(), ops.Meet()))))


def test_memory_spaces_and_names() -> None:
    refused("memory: 0x200800 bytes are not a multiple of 0x1000", memory=0x200800)
    refused("not a multiple of 0x200000", memory=0x500000, huge=True)
    refused("from 0x200000 to 0xc0000000", memory=1 << 40)
    refused("two spaces are called 'a'", spaces=(Space("a"), Space("a")))
    refused("needs an address space", spaces=())
    refused("needs a name and a unit", unit="")
    refused("surrogate without its other half", summary="\ud800")
    refused("unknown CPUID feature 'smepp'; nearest: smep", features=frozenset({"smepp"}))
    refused("0 vCPUs", vcpus=())
    make(pages=tuple(Pages(0x400000 + 0x2000 * i, 0x200000) for i in range(256)))
    # 512 tables for 1 GiB from 2 MiB on, in two directories and one table above them; 4 for the window and the root.
    refused("its spaces need about 519 page tables", memory=3 << 30, pages=(Pages(0x200000, 0x200000, count=1 << 18),))


def test_bare_layouts() -> None:
    layout, pages = Layout(0x1000, 0x2000), (Pages(0, 0, "2M"),)
    make(ops.WriteCr(0, toggle=("WP",)), layout=layout, pages=pages)
    refused("no pages map 0x1000, where the code is", layout=layout, pages=())
    refused("tables 0x2100 is not a multiple", layout=Layout(0x1000, 0x2100), pages=pages)
    refused("code 0x400000 lies outside of memory", layout=Layout(0x400000, 0x2000), pages=pages)
    for operation in (
        ops.User(),
        ops.SingleStep(),
        ops.Load(0, user=True),
        ops.Fetch(0x3000),
        ops.ReadCr(0, keep=True),
    ):
        refused("vcpu 0 body 0: ", operation, layout=layout, pages=pages)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("nop", {"nx"}),
        ("cr4-smep", {"nx", "smep"}),
        ("cr0-wp+cet", {"nx", "shstk"}),
        ("cr4-pke", {"nx", "pku"}),
        ("cr4-fsgsbase", {"nx", "fsgsbase"}),
        ("invpcid", {"nx", "invpcid"}),
        ("smap", {"nx", "smap"}),
        ("context-switch:pcid=true", {"nx", "pcid"}),
        ("recorded-wp", set()),
        ("access:features=all", {"nx", "smep", "smap", "pku"}),
    ],
)
def test_the_features_a_program_needs(name: str, needed: set[str]) -> None:
    assert features(library.program(name)) == needed


def test_features_of_operations_and_pages() -> None:
    assert "pdpe1gb" in features(make(pages=(Pages(0x40000000, 0x40000000, "1G"),), memory=2 << 30))
    assert "la57" in features(make(ops.WriteCr(4, value=0x1020)))
    assert "svm" in features(make(ops.WriteMsr(0xC0000080, 0x1D00)))
    assert features(make(features=frozenset({"x2apic"}))) == {"nx", "x2apic"}


def test_either_feature_makes_cet_available() -> None:
    """SDM volume 3, 2.5: CR4.CET can be set if CPUID has CET_SS or CET_IBT."""
    with_cet = State(cr4=bit_mask(CR4, "PAE", "CET"))
    assert features(make(state=with_cet)) == {"nx", "shstk"}
    assert features(make(state=with_cet, features=frozenset({"ibt"}))) == {"nx", "ibt"}
    assert features(make(state=with_cet, features=frozenset({"ibt", "shstk"}))) == {"nx", "ibt", "shstk"}
