"""Programs that touch memory: first touches, execution from huge pages, faults, page-table writes, SMAP, keys."""

from __future__ import annotations

from typing import Any

from worldswitch.guest.library.registry import one_of, power_of_two, shipped
from worldswitch.guest.operations import (
    Clac,
    Fetch,
    Invlpg,
    Load,
    Operation,
    Stac,
    Store,
    WriteEntry,
    WritePkru,
)
from worldswitch.guest.program import SIZES, Handler, Pages, Space, State, Vcpu
from worldswitch.x86.registers import CR0, CR4, bit_mask

_VA, _PA = 0x4000_0000, 0x200000
_MIB = 1 << 20
_MOST = 512 * _MIB


def _mapped(*body: Operation, pages: Pages, handlers: tuple[Handler, ...] = (), **more: Any) -> dict[str, Any]:
    memory = pages.pa + SIZES[pages.size] * pages.count
    parts = {"spaces": (Space("main", (pages,)),), "vcpus": (Vcpu(body=body, handlers=handlers),)}
    return {**parts, "memory": max(memory, 4 * _MIB), **more}


@shipped("page-touch")
def page_touch(*, size: str = "4K", pages: int = 64, write: bool = True, huge: bool = False) -> dict[str, Any]:
    """Touches one page after the other, each for the first time while n is not above pages.

    Expect: 1 exit per page with 4K pages of the host (EPT violation or nested page fault), one per 2 MiB with huge
    pages.

    Source: kvm_tdp_page_fault() in arch/x86/kvm/mmu/mmu.c.
    """
    step = SIZES[one_of("page size", size, ("4K", "2M"))]
    power_of_two("pages", pages, _MOST // step)
    kind = Store if write else Load
    access = kind(_VA, step, pages) if pages > 1 else kind(_VA)
    mapped = Pages(_VA, _PA, size, pages)
    return _mapped(access, pages=mapped, unit="page", default_n=pages, huge=huge)


@shipped("exec-huge")
def exec_huge(*, pages: int = 8, read: bool = True) -> dict[str, Any]:
    """Reads each 2 MiB page and then runs code in it, the first time in each while n is not above pages.

    Expect: where nx_huge_pages is on and the host has huge pages, one split per page: 1 exit for the read, 1 for the
    fetch and the statistic nx_lpage_splits up by one.

    Source: tools/testing/selftests/kvm/x86/nx_huge_pages_test.c; kvm_mmu_hugepage_adjust() in arch/x86/kvm/mmu/mmu.c.
    """
    size = SIZES["2M"]
    power_of_two("pages", pages, _MOST // size)
    walk = (size, pages) if pages > 1 else ()
    body: tuple[Operation, ...] = (Load(_VA, *walk), Fetch(_VA, *walk)) if read else (Fetch(_VA, *walk),)
    return _mapped(*body, pages=Pages(_VA, _PA, "2M", pages), unit="page", default_n=pages, huge=True)


@shipped("wp-fault")
def wp_fault(*, wp: bool = True, fix: bool = False) -> dict[str, Any]:
    """Stores to a read-only page at CPL 0, with CR0.WP set or clear; with fix, the handler makes the page writable.

    Expect: with WP, one #PF per store with error code 3 (present, write); without, none. Exits only with shadow paging.

    Source: Intel SDM volume 3, section 4.6.1 (supervisor-mode accesses); kvm-unit-tests' x86/access.c.
    """
    state = State() if wp else State(cr0=State().cr0 & ~bit_mask(CR0, "WP"))
    store = Store(_VA, value=1)
    mapped = Pages(_VA, _PA, flags=())
    if not fix:
        return _mapped(store, pages=mapped, unit="store", state=state)
    flush = Invlpg(_VA)
    repair = Handler(14, retry=True, fix=(WriteEntry("main", _VA, set=("W",)), flush))
    protect = WriteEntry("main", _VA, clear=("W",))
    return _mapped(store, protect, flush, pages=mapped, handlers=(repair,), unit="store", state=state)


@shipped("page-fault")
def page_fault(*, user: bool = False) -> dict[str, Any]:
    """Reads from a page that is not present; the fault is the guest's own affair.

    Expect: one #PF per read with error code 0, at CPL 3 code 4 (user); exits only with shadow paging.

    Source: Intel SDM volume 3, section 4.7; kvm_handle_page_fault() in arch/x86/kvm/mmu/mmu.c.
    """
    return _mapped(Load(_VA, user=user), pages=Pages(_VA, _PA, flags=("W", "U"), present=False), unit="fault")


@shipped("entry-write")
def entry_write(*, flush: bool = True) -> dict[str, Any]:
    """Makes a page read-only and writable again in the guest's own page tables, with INVLPG after each, and stores to
    it.

    Expect: 0 exits with EPT or NPT; with shadow paging the stores to a write-protected table and INVLPG exit.

    Source: kvm_mmu_track_write() and detect_write_flooding() in arch/x86/kvm/mmu/mmu.c.
    """
    flushes = (Invlpg(_VA),) if flush else ()
    off, on = WriteEntry("main", _VA, clear=("W",)), WriteEntry("main", _VA, set=("W",))
    body = (off, *flushes, on, *flushes, Store(_VA, value=1))
    return _mapped(*body, pages=Pages(_VA, _PA), unit="pair")


@shipped("smap")
def smap(*, fault: bool = True) -> dict[str, Any]:
    """Reads a user page at CPL 0 between STAC and CLAC, as copy_from_user() does, and with fault once more without.

    Expect: the second read is a #PF with error code 1 (present); exits only with shadow paging.

    Source: Intel SDM volume 3, section 4.6.1; kvm-unit-tests' x86/smap.c.
    """
    load = Load(_VA)
    body = (Stac(), load, Clac(), load) if fault else (Stac(), load, Clac())
    state = State(cr4=bit_mask(CR4, "PAE", "SMAP"))
    return _mapped(*body, pages=Pages(_VA, _PA, flags=("W", "U")), unit="copy", state=state)


@shipped("pkru")
def pkru(*, key: int = 1) -> dict[str, Any]:
    """Closes a protection key, reads a page that has it, opens the key and reads again.

    Expect: the first read is a #PF with error code 0x21 (present, protection key); WRPKRU does not exit.

    Source: Intel SDM volume 3, section 4.6.2; kvm-unit-tests' x86/pku.c.
    """
    body = (WritePkru(1 << 2 * (key & 15)), Load(_VA), WritePkru(0), Load(_VA))
    state = State(cr4=bit_mask(CR4, "PAE", "PKE"))
    return _mapped(*body, pages=Pages(_VA, _PA, flags=("W", "U"), key=key), unit="pair of reads", state=state)
