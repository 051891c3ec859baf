"""What a trace tells of its host."""

from __future__ import annotations

import pytest

from guest_build import EPT_VIOLATION, EXCEPTION_NMI, HLT, NPF, SVM, VMX, Guest
from worldswitch.errors import NotTold
from worldswitch.record.trace import Meta
from worldswitch.trace.exits import pair_exits
from worldswitch.trace.host import Seen, source_kernel
from worldswitch.trace.readers import open_input
from worldswitch.trace.readers.source import Input

NMI, BREAKPOINT, PAGE_FAULT = 0x80000202, 0x80000603, 0x80000B0E
"""VM-exit interruption information: valid, type, vector; SDM table 25-19."""


def seen(source) -> Seen:
    found = Seen()
    trace = source.trace() if isinstance(source, Guest) else source
    for batch in trace.batches():
        found.look(batch)
    if isinstance(source, Guest):
        for _, rows in pair_exits(trace):
            found.add(rows)
    return found


@pytest.mark.parametrize(
    ("guest", "paging"),
    [
        (Guest().exit(HLT), None),
        (Guest().exit(EPT_VIOLATION), "two-dimensional"),
        (Guest().exit(49), "two-dimensional"),  # EPT_MISCONFIG
        (Guest(SVM).exit(NPF), "two-dimensional"),
        (Guest(SVM).exit(0x4E), "shadow"),
        (Guest().exit(EXCEPTION_NMI, intr_info=PAGE_FAULT), "shadow"),
        (Guest().exit(EXCEPTION_NMI, intr_info=NMI).exit(EXCEPTION_NMI, intr_info=BREAKPOINT), None),
        (Guest().exit(EXCEPTION_NMI, within=(("kvm_page_fault", {}),)), "shadow"),
        (Guest().exit(EXCEPTION_NMI), "shadow"),  # not told: taken for page faults
        (Guest().exit(EXCEPTION_NMI, intr_info=PAGE_FAULT).exit(EPT_VIOLATION), "two-dimensional"),
    ],
)
def test_page_fault_exits_tell_the_paging(guest: Guest, paging: str | None) -> None:
    assert seen(guest).paging == paging


@pytest.mark.parametrize(("info2", "shadow"), [("80000b0e", 1), ("80000202", 0)])
def test_old_events_have_the_vector_in_info2(info2: str, shadow: int) -> None:
    """Up to 5.9: ``reason EXCEPTION_NMI rip 0x1000 info <qualification> <interruption information>``."""
    text = "".join(
        f"  qemu-1  [000] d...  1.00000{n}: kvm_exit: reason EXCEPTION_NMI rip 0x1000 info 2000 {info2}\n"
        for n in range(3)
    )
    found = seen(open_input(Input.from_bytes(text.encode())))
    assert (found.shadow > 0, found.exceptions) == (bool(shadow), 0)


def test_the_vendor_is_that_of_the_exits() -> None:
    assert seen(Guest(VMX).exit(HLT)).vendor(Meta()) == "intel"
    assert seen(Guest(SVM).exit(HLT)).vendor(Meta(vendor="intel")) == "amd"
    assert Seen().vendor(Meta(vendor="amd")) == "amd"


def test_the_kernel_is_told_or_asked_for() -> None:
    told = source_kernel(Meta(kernel="6.1.0-54-cloud-amd64"), None)
    assert (str(told.kernel), told.assumed) == ("6.1.190", None)
    with pytest.raises(NotTold, match="state it"):
        source_kernel(Meta(source="x.txt"), None)
    assert source_kernel(Meta(kernel="5.15.0-91-generic"), "5.15.131").assumed == "5.15.131"
