"""The bounds within which programs are made: what they use of the processor, how large they are, what they leave out.

Each bound is a number or a set here, and a sentence of :func:`sentences`, which the tool and its page print.
"""

from __future__ import annotations

from collections.abc import Iterator

PASSES = (1, 20)
"""Passes of a body."""
GROUPS = (3, 16)
"""Sequences of operations that a body is put together from; each is 1 to about 8 operations."""
SPACES = 3
SLOTS = {"near": (0x4000_0000, 8), "far": (0x80_4000_0000, 4), "high": (0xFFFF_8000_0000_0000, 2)}
"""Groups of pages of 4 KiB: the first address, and how many."""
LARGE = (0x8000_0000, 2)
"""Pages of 2 MiB."""
ALIAS = 0x7F00_0000_0000
"""Where the first space maps every frame once more, for CPL 0, so that memory can be read at the end."""
FRAMES, FRAME_BASE = 16, 0x20_0000
LARGE_FRAMES = (0x40_0000, 0x60_0000)
USED_OF_LARGE = 16
"""Pages of 4 KiB at the start of each large frame that programs reach."""
MEMORY = 0x80_0000
DATA_END, CODE_START = 0x7F0, 0x800
"""Offsets in a page: stores stay below the first, fetches start at the second, where all is RET."""
REPEATS = (2, 6)
FLOOD = 8
"""Stores in a row into one page table."""
KEPT_IN_BODY = 48
HANDLED = (14, 13, 6, 1)
CR0_BITS = ("WP", "TS", "MP", "EM", "AM", "NE", "CD", "NW", "PE")
CR4_BITS = ("PGE", "SMEP", "SMAP", "PKE", "TSD", "FSGSBASE", "PCIDE", "UMIP", "CET", "PAE", "DE", "PCE", "MCE",
            "OSFXSR", "OSXMMEXCPT", "PSE")  # fmt: skip
NEEDS = {"SMEP": "smep", "SMAP": "smap", "PKE": "pku", "FSGSBASE": "fsgsbase", "PCIDE": "pcid", "UMIP": "umip",
         "CET": "shstk"}  # fmt: skip
"""CR4 bit -> the CPUID feature without which it is left alone. PAE is only changed to be refused."""
UNNAMED_CR4 = 1 << 30
"""A bit nobody has, which a write must be refused for."""
NOT_CANONICAL = 1 << 47
RESERVED_PA = 1 << 51
"""An address beyond the widest processor's here, so a reserved bit of an entry."""
RESERVED = 0.05
"""How many programs may have reserved bits in entries."""


def sentences() -> Iterator[str]:
    """The bounds, one sentence each."""
    yield (
        f"One vCPU of 64-bit code with 4-level paging; {PASSES[0]} to {PASSES[1]} passes over {GROUPS[0]} to "
        f"{GROUPS[1]} sequences of operations, about 5 to 60 operations; blocks repeat "
        f"{REPEATS[0]} to {REPEATS[1]} times and do not nest."
    )
    yield (
        f"1 to {SPACES} address spaces with pages of 4 KiB in three places and up to {LARGE[1]} of 2 MiB, on "
        f"{FRAMES} small and {len(LARGE_FRAMES)} large frames, so that frames are mapped more than once. "
        f"Reserved bits in entries, NX with EFER.NXE off among them, in {RESERVED:.0%} of the programs."
    )
    yield (
        "The host backs guest memory by pages of 4 KiB (MADV_NOHUGEPAGE); guest memory ends at 8 MiB and nothing is "
        "reached beyond it."
    )
    yield (
        f"CR0: {', '.join(CR0_BITS)}; PG stays, and the upper half is 0, which QEMU ignores. CR4: "
        f"{', '.join(CR4_BITS)} and a bit nobody has, those of features only where the machine has them, and "
        "protection keys not on Bochs 3.0, which checks them wrongly; PAE only as writes that are refused."
    )
    yield (
        "No access depends on a translation the processor may or may not remember: what takes rights away, or sends a "
        "page elsewhere, is followed by INVLPG, INVPCID or two changes of CR4.PGE before anything else. What adds "
        "rights is not. Global pages appear with one space only, and each space has PCIDs of its own but for 0, which "
        "is never loaded without a flush."
    )
    yield (
        "Accesses at CPL 3 are aligned and addresses in MSRs canonical, as QEMU raises no #AC and no #GP for them. "
        "None is fetched from that is not canonical, as QEMU says where it would have gone. Debug registers hold "
        "addresses and no enabled breakpoint. No time stamp is read, no interrupt comes."
    )
    yield (
        "An exception is fixed by a handler and tried again at most once, and never within a handler, so every program "
        "ends."
    )
    yield (
        "Exits by the host's interrupts are not counted; all others must be equal, by reason. Values the model does "
        "not know (CPUID, debug registers, some MSRs) are not compared, nor is the A bit of an entry that leads to "
        "another table, which a processor may set in a walk that faults."
    )
