"""EXITINTINFO that keeps the type of a delivered event. Expected: exits by reason that kvm_exit of 7.2.13 printed for
these programs in the lab, on QEMU 7.2.22 with SVM and npt=0; its EXITINTINFO after the #DB was 0x301, not valid."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from worldswitch.conform.session import host_of
from worldswitch.guest.operations import Invlpg, Operation, SingleStep, Store, WriteEntry
from worldswitch.guest.program import Mode, Pages, Program, Space, State, Vcpu
from worldswitch.kvm.host import Host
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import Run, run
from worldswitch.kvm.vectoring import taken_for_vectoring

VA = 0x4000_0000
ROOT = 0xFFFF_FFFF_FFC1_0000
KEPT = Host(huge_pages=False, decode_assists=False, next_rip=False, exitintinfo_cleared=False)
TOGGLED = WriteEntry(space="main", va=VA, level=4, toggle=("U",))


def _run(
    kernel: str,
    host: Host,
    *body: Operation,
    setup: tuple[Operation, ...] = (),
    n: int = 1,
    interrupted: frozenset[int] = frozenset(),
) -> Run:
    program = Program(
        name="vectoring",
        summary="A test.",
        unit="write",
        default_n=n,
        mode=Mode.LONG,
        memory=0x400000,
        state=State(cr0=0x80050033, cr4=0x20, efer=0xD00),
        spaces=(Space("main", (Pages(VA, 0x200000),)),),
        vcpus=(Vcpu(setup=setup, body=body),),
    )
    return run(program, Policy.of(kernel, "amd", "shadow", []), host=host, interrupted=interrupted)


def test_a_write_after_a_delivered_event_is_tried_again() -> None:
    """Rule svm-vectoring-by-type: the root is zapped, so the code faults before the write does again."""
    found = _run("7.2.13", KEPT, SingleStep(), TOGGLED)
    assert found.exits_by_reason == {"DB excp": 1, "PF excp": 7, "hlt": 1}
    assert found.ended == ""


def test_the_same_write_tried_again_once_more_ends_the_guest() -> None:
    """In the second pass it has the instruction and the address of the last that was tried again."""
    found = _run("7.2.13", KEPT, SingleStep(), TOGGLED, n=2)
    assert found.exits_by_reason == {"DB excp": 2, "PF excp": 8}
    assert found.ended == f"internal error 3 at {ROOT:#x}"
    assert found.reports == (None,)


@pytest.mark.parametrize(
    ("table", "exits", "ends"),
    [
        (0x10000, {"DB excp": 1, "PF excp": 7, "invlpg": 1, "hlt": 1}, False),
        (0x11000, {"DB excp": 1, "PF excp": 5, "invlpg": 1}, True),
        (0x12000, {"DB excp": 1, "PF excp": 7, "invlpg": 1, "hlt": 1}, False),
        (0x13000, {"DB excp": 1, "PF excp": 5, "invlpg": 1}, True),
    ],
    ids=["root", "leaf", "other", "middle"],
)
def test_a_write_to_a_table_of_its_own_translation_ends_the_guest(
    table: int, exits: Mapping[str, int], ends: bool
) -> None:
    """The root does not count among those."""
    setup = (WriteEntry(space="main", va=VA, pa=table), Invlpg(VA))
    found = _run("7.2.13", KEPT, SingleStep(), Store(VA + 0xFF0, value=0), setup=setup)
    assert found.exits_by_reason == exits
    assert found.ended == (f"internal error 3 at {VA + 0xFF0:#x}" if ends else "")


def test_what_is_the_first_exit_after_another_is_emulated() -> None:
    """Without an event before it, and on a processor that clears EXITINTINFO."""
    cases: tuple[tuple[Host, tuple[Operation, ...]], ...] = (
        (KEPT, (TOGGLED,)),
        (host_of("amd"), (SingleStep(), TOGGLED)),
    )
    for host, body in cases:
        assert _run("7.2.13", host, *body).exits_by_reason == _run("6.12", host, *body).exits_by_reason


def test_where_it_is_asked() -> None:
    """7.2 alone of these checks, only under SVM, and there is nothing to zap with two-dimensional paging."""
    kernels = ("5.10", "6.1", "6.12", "7.2")
    assert [taken_for_vectoring(Policy.of(one, "amd", "shadow", []), KEPT) for one in kernels] == [False] * 3 + [True]
    assert not taken_for_vectoring(Policy.of("7.2", "intel", "shadow", []), KEPT)
    assert not taken_for_vectoring(Policy.of("7.2", "amd", "tdp", []), KEPT)
    assert not taken_for_vectoring(Policy.of("7.2", "amd", "shadow", []), Host())


def test_an_interrupt_between_makes_kvm_emulate() -> None:
    """Another run of the leaf's program above, which an exit by an interrupt came into after the #DB."""
    setup = (WriteEntry(space="main", va=VA, pa=0x11000), Invlpg(VA))
    body = (SingleStep(), Store(VA + 0xFF0, value=0))
    found = _run("7.2.13", KEPT, *body, setup=setup, interrupted=frozenset((5, 6)))
    assert found.exits_by_reason == {"DB excp": 1, "PF excp": 5, "invlpg": 1, "hlt": 1}
    assert found.ended == ""
