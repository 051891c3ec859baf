"""CPUID features by name, and entries of CPUID with some of them hidden or shown. Standard library, Python 3.9.

Sources: Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E. Names are those of Linux's
arch/x86/include/asm/cpufeatures.h, in lower case, where it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from worldswitch.errors import UnknownNameError


class CpuidEntry(NamedTuple):
    """What CPUID answers for one leaf and subleaf; *flags* are KVM's: 1 says that the subleaf counts."""

    leaf: int
    subleaf: int
    flags: int
    eax: int
    ebx: int
    ecx: int
    edx: int


class Feature(NamedTuple):
    """Where CPUID shows a feature.

    Attributes:
        since: Processors that have it, and what else it needs; for error messages.
    """

    leaf: int
    subleaf: int
    register: str
    bit: int
    since: str = ""


_BASIC, _STRUCTURED, _EXTENDED = 1, 7, 0x80000001

FEATURES: dict[str, Feature] = {
    "fpu": Feature(_BASIC, 0, "edx", 0),
    "vme": Feature(_BASIC, 0, "edx", 1),
    "de": Feature(_BASIC, 0, "edx", 2),
    "pse": Feature(_BASIC, 0, "edx", 3),
    "tsc": Feature(_BASIC, 0, "edx", 4),
    "msr": Feature(_BASIC, 0, "edx", 5),
    "pae": Feature(_BASIC, 0, "edx", 6),
    "mtrr": Feature(_BASIC, 0, "edx", 12),
    "pge": Feature(_BASIC, 0, "edx", 13),
    "pat": Feature(_BASIC, 0, "edx", 16),
    "fxsr": Feature(_BASIC, 0, "edx", 24),
    "xmm": Feature(_BASIC, 0, "edx", 25),
    "xmm2": Feature(_BASIC, 0, "edx", 26),
    "mwait": Feature(_BASIC, 0, "ecx", 3),
    "vmx": Feature(_BASIC, 0, "ecx", 5),
    "smx": Feature(_BASIC, 0, "ecx", 6),
    "pcid": Feature(_BASIC, 0, "ecx", 17, "Intel since Westmere, AMD since Zen 3"),
    "x2apic": Feature(_BASIC, 0, "ecx", 21),
    "xsave": Feature(_BASIC, 0, "ecx", 26),
    "hypervisor": Feature(_BASIC, 0, "ecx", 31),
    "fsgsbase": Feature(_STRUCTURED, 0, "ebx", 0, "Intel since Ivy Bridge, AMD since Zen"),
    "smep": Feature(_STRUCTURED, 0, "ebx", 7, "Intel since Ivy Bridge, AMD since Zen"),
    "erms": Feature(_STRUCTURED, 0, "ebx", 9),
    "invpcid": Feature(_STRUCTURED, 0, "ebx", 10, "Intel since Haswell, AMD since Zen 3"),
    "smap": Feature(_STRUCTURED, 0, "ebx", 20, "Intel since Broadwell, AMD since Zen"),
    "umip": Feature(_STRUCTURED, 0, "ecx", 2, "Intel since Ice Lake, AMD since Zen 2"),
    "pku": Feature(_STRUCTURED, 0, "ecx", 3, "Intel servers since Skylake, AMD since Zen 3; not with shadow paging"),
    "shstk": Feature(
        _STRUCTURED, 0, "ecx", 7, "Intel since Tiger Lake, AMD since Zen 3, with Linux 6.18 or newer and EPT or NPT"
    ),
    "la57": Feature(_STRUCTURED, 0, "ecx", 16, "Intel servers since Ice Lake, AMD since Zen 4"),
    "kl": Feature(_STRUCTURED, 0, "ecx", 23),
    "pks": Feature(_STRUCTURED, 0, "ecx", 31),
    "uintr": Feature(_STRUCTURED, 0, "edx", 5),
    "lass": Feature(_STRUCTURED, 1, "eax", 6),
    "fred": Feature(_STRUCTURED, 1, "eax", 17),
    "lam": Feature(_STRUCTURED, 1, "eax", 26),
    "ibt": Feature(_STRUCTURED, 0, "edx", 20, "Intel since Tiger Lake, with Linux 6.18 or newer and EPT"),
    "fsrm": Feature(_STRUCTURED, 0, "edx", 4),
    "xsaves": Feature(0xD, 1, "eax", 3),
    "syscall": Feature(_EXTENDED, 0, "edx", 11),
    "nx": Feature(_EXTENDED, 0, "edx", 20, "all 64-bit processors, unless the firmware switches it off"),
    "fxsr_opt": Feature(_EXTENDED, 0, "edx", 25),
    "pdpe1gb": Feature(_EXTENDED, 0, "edx", 26, "Intel since Westmere, AMD since family 10h"),
    "rdtscp": Feature(_EXTENDED, 0, "edx", 27),
    "lm": Feature(_EXTENDED, 0, "edx", 29),
    "svm": Feature(_EXTENDED, 0, "ecx", 2),
    "tce": Feature(_EXTENDED, 0, "ecx", 17),
}  # fmt: skip
"""Name -> where CPUID shows it."""

AMD_VENDORS = ("AuthenticAMD", "HygonGenuine")
"""Vendors whose processors have VMMCALL instead of VMCALL (APM volume 3, VMMCALL)."""


def feature(name: str) -> Feature:
    """The feature of that name.

    Raises:
        UnknownNameError: There is none; names the nearest.
    """
    found = FEATURES.get(name.lower())
    if found is None:
        raise UnknownNameError("CPUID feature", name, FEATURES)
    return found


def has(entries: Iterable[CpuidEntry], name: str) -> bool:
    """Whether *entries* show the feature. Raises UnknownNameError for a name nobody knows."""
    wanted = feature(name)
    return any(getattr(e, wanted.register) >> wanted.bit & 1 for e in entries if _is_at(e, wanted))


def hide(entries: Iterable[CpuidEntry], names: Iterable[str]) -> tuple[CpuidEntry, ...]:
    """*entries* without the features. Raises UnknownNameError."""
    found = tuple(entries)
    for name in names:
        wanted = feature(name)
        found = tuple(_changed(e, wanted, False) if _is_at(e, wanted) else e for e in found)
    return found


def show(entries: Iterable[CpuidEntry], names: Iterable[str]) -> tuple[CpuidEntry, ...]:
    """*entries* with the features, also those the processor does not have. Raises UnknownNameError."""
    found = tuple(entries)
    for name in names:
        wanted = feature(name)
        if not any(_is_at(e, wanted) for e in found):
            flags = 1 if wanted.leaf in (_STRUCTURED, 0xD) else 0
            found += (CpuidEntry(wanted.leaf, wanted.subleaf, flags, 0, 0, 0, 0),)
            found = _reaching(found, wanted.leaf)
        found = tuple(_changed(e, wanted, True) if _is_at(e, wanted) else e for e in found)
    return found


def vendor(entries: Iterable[CpuidEntry]) -> str:
    """The twelve letters of leaf 0, such as ``GenuineIntel``; empty if there is no leaf 0."""
    for entry in entries:
        if entry.leaf == 0:
            letters = b"".join(value.to_bytes(4, "little") for value in (entry.ebx, entry.edx, entry.ecx))
            return letters.decode("latin-1").rstrip("\0")
    return ""


def _is_at(entry: CpuidEntry, wanted: Feature) -> bool:
    return entry.leaf == wanted.leaf and entry.subleaf == wanted.subleaf


def _changed(entry: CpuidEntry, wanted: Feature, on: bool) -> CpuidEntry:
    before: int = getattr(entry, wanted.register)
    bit = 1 << wanted.bit
    return entry._replace(**{wanted.register: before | bit if on else before & ~bit})


def _reaching(entries: Sequence[CpuidEntry], leaf: int) -> tuple[CpuidEntry, ...]:
    """*entries* whose highest leaf (EAX of leaf 0, or of 0x80000000) is at least *leaf*."""
    head = leaf & 0x80000000
    return tuple(e._replace(eax=max(e.eax, leaf)) if e.leaf == head else e for e in entries)
