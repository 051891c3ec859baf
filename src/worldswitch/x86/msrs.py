"""Model-specific registers by their manual names.

Sources: Intel SDM volume 4, chapter 2, table 2-2 "IA-32 Architectural MSRs" (names there start with ``IA32_``); AMD APM
volume 2, appendix A "MSR Cross-Reference".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from worldswitch.errors import UnknownNameError

MSRS: Mapping[str, int] = MappingProxyType(
    {
        "TSC": 0x10,
        "APIC_BASE": 0x1B,
        "FEATURE_CONTROL": 0x3A,
        "TSC_ADJUST": 0x3B,
        "SPEC_CTRL": 0x48,
        "PRED_CMD": 0x49,
        "BIOS_SIGN_ID": 0x8B,
        "MPERF": 0xE7,
        "APERF": 0xE8,
        "MTRRCAP": 0xFE,
        "ARCH_CAPABILITIES": 0x10A,
        "FLUSH_CMD": 0x10B,
        "SYSENTER_CS": 0x174,
        "SYSENTER_ESP": 0x175,
        "SYSENTER_EIP": 0x176,
        "MCG_CAP": 0x179,
        "MCG_STATUS": 0x17A,
        "MISC_ENABLE": 0x1A0,
        "DEBUGCTL": 0x1D9,
        "PAT": 0x277,
        "MTRR_DEF_TYPE": 0x2FF,
        "PERF_GLOBAL_CTRL": 0x38F,
        "U_CET": 0x6A0,
        "S_CET": 0x6A2,
        "PL0_SSP": 0x6A4,
        "PL1_SSP": 0x6A5,
        "PL2_SSP": 0x6A6,
        "PL3_SSP": 0x6A7,
        "INTERRUPT_SSP_TABLE_ADDR": 0x6A8,
        "TSC_DEADLINE": 0x6E0,
        "PKRS": 0x6E1,
        "XSS": 0xDA0,
        "EFER": 0xC0000080,
        "STAR": 0xC0000081,
        "LSTAR": 0xC0000082,
        "CSTAR": 0xC0000083,
        "FMASK": 0xC0000084,
        "FS_BASE": 0xC0000100,
        "GS_BASE": 0xC0000101,
        "KERNEL_GS_BASE": 0xC0000102,
        "TSC_AUX": 0xC0000103,
        "TSC_RATIO": 0xC0000104,
        "SYSCFG": 0xC0010010,
        "HWCR": 0xC0010015,
        "VM_CR": 0xC0010114,
        "VM_HSAVE_PA": 0xC0010117,
        "VIRT_SPEC_CTRL": 0xC001011F,
    }
)
"""Name -> number, without ``IA32_``."""

_NAMES = {number: name for name, number in MSRS.items()}
_OTHER_NAMES = {"SFMASK": "FMASK", "SYSCALL_MASK": "FMASK", "TIME_STAMP_COUNTER": "TSC", "CR_PAT": "PAT"}


def msr_name(number: int) -> str:
    """The name, or the number in hexadecimal where the table has none."""
    return _NAMES.get(number, f"{number:#x}")


def msr_number(name: str) -> int:
    """The number of the MSR called *name*, such as ``"LSTAR"``, ``"IA32_PAT"`` or ``"MSR_EFER"``.

    Raises:
        UnknownNameError: The table has no such name; gives the nearest.
    """
    word = name.strip().upper().removeprefix("IA32_").removeprefix("MSR_")
    word = _OTHER_NAMES.get(word, word)
    if word not in MSRS:
        raise UnknownNameError("model-specific register", name, MSRS, "A number is understood too")
    return MSRS[word]


# ---- control-flow enforcement: what the processor refuses

CONTROL_RESERVED = 0xF << 6
"""Bits of U_CET and S_CET that are reserved."""
SHADOW_STACK_BITS = 0x3
"""Those of U_CET and S_CET that belong to shadow stacks; the others belong to indirect-branch tracking."""
SUPPRESS, WAIT = 1 << 10, 1 << 11
LEGACY_BITMAP = -1 << 12 & (1 << 64) - 1
"""Bits of U_CET and S_CET that hold the address of the bitmap of legacy code pages."""
_SSP = frozenset(MSRS[f"PL{ring}_SSP"] for ring in range(4))


def canonical(value: int, bits: int = 48) -> bool:
    """Whether *value* is an address that *bits* bits reach: 57 with 5-level paging, else 48."""
    return value >> bits - 1 in (0, (1 << 65 - bits) - 1)


def refuses_cet(msr: int, value: int, branch_tracking: bool = True, bits: int = 48) -> bool:
    """Whether the processor itself answers WRMSR of a CET register with #GP.

    Sources: SDM volume 1, chapter 17, and volume 4, table 2-2.

    Args:
        branch_tracking: The processor has IBT; without, the bits that belong to it are reserved.
        bits: Of a linear address.
    """
    if not canonical(value, bits):
        return True
    if msr in _SSP:
        return bool(value & 3)
    if msr == MSRS["INTERRUPT_SSP_TABLE_ADDR"]:
        return False
    forbidden = CONTROL_RESERVED if branch_tracking else ~SHADOW_STACK_BITS
    return bool(value & forbidden or (value & SUPPRESS and value & WAIT))
