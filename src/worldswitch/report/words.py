"""Words for readers who have never heard of it: what exit reasons and control-register bits are."""

from __future__ import annotations

from collections.abc import Iterable

REASONS: dict[tuple[str, ...], str] = {
    ("cr0_sel_write", "write_cr0", "write_cr4", "write_cr3", "CR_ACCESS"): (
        "the guest's kernel wrote a control register that KVM watches"
    ),
    ("npf", "EPT_VIOLATION"): (
        "the guest touched memory for which the processor found no entry in the page tables that KVM keeps for it"
    ),
    ("EPT_MISCONFIG",): "the guest touched an address that KVM marked as a device's",
    ("hlt", "HLT"): "the guest had nothing to do; waiting is no cost by itself",
    ("interrupt", "EXTERNAL_INTERRUPT", "intr"): "the host got an interrupt while the guest ran",
    ("msr", "MSR_WRITE", "MSR_READ"): "the guest read or wrote a model-specific register, often a timer's",
    ("io", "IO_INSTRUCTION"): "the guest used an I/O port, which a device model in userspace answers",
    ("cpuid", "CPUID"): "the guest asked what the processor can do; every CPUID exits",
    ("vmmcall", "VMCALL"): "the guest called its hypervisor on purpose",
    ("pause", "PAUSE_INSTRUCTION"): "the guest spun on a lock for long",
    ("EXCEPTION_NMI", "excp_base", "PF excp"): "an exception in the guest that KVM wants to see, or an NMI",
    ("PREEMPTION_TIMER", "INTERRUPT_WINDOW", "PENDING_INTERRUPT", "vintr"): "KVM waited to give the guest an interrupt",
    ("invlpg", "INVLPG"): "the guest threw one page out of its TLB, which shadow paging must see",
    ("APIC_ACCESS", "APIC_WRITE", "EOI_INDUCED", "avic_incomplete_ipi"): "the guest used its interrupt controller",
}
"""Exit reasons -> what has happened."""

GLOSSES: dict[str, str] = {
    "CR0.WP": (
        "CR0.WP is the switch with which a guest's kernel lifts the write protection of its own read-only pages; "
        "hardened kernels flip it often."
    ),
    "CR4.CET": "CR4.CET switches shadow stacks on and off; a kernel that flips CR0.WP has to flip it too.",
    "CR4.PGE": "CR4.PGE keeps global pages in the TLB; a kernel clears and sets it to flush them.",
}
"""A register's bit -> what it is for, in a sentence."""

TERMS: dict[str, str] = {
    "exit": (
        "A VM exit (a world switch): the processor leaves the guest, KVM on the host does something, and the "
        "guest goes "
        "on. While it lasts the guest stands still."
    ),
    "WP": (
        "CR0.WP is the bit in which a guest's kernel says whether it may write pages that are read-only. "
        "Hardened guest "
        "kernels flip it each time they change protected data."
    ),
    "page tables": (
        "KVM keeps page tables of its own for each guest: they say where the guest's memory is. Their top is the MMU "
        "root. What is not in them yet, the guest's first touch of each page makes KVM fill in: one page fault, "
        "one exit."
    ),
    "refault": "A refault is a page fault on a page that had been filled in before, so one that need not have been.",
    "TDP MMU": (
        "Two-dimensional paging (EPT on Intel, NPT on AMD) lets the processor walk KVM's tables itself. KVM has two "
        "implementations to fill them, the legacy one and the TDP MMU."
    ),
    "interval": (
        "An interval (95 %) is where the number would lie in 95 of 100 repetitions, by a bootstrap of the trace."
    ),
}
"""Key -> one explanation."""


def reason(name: str | None) -> str:
    """What exits of this reason are; empty where there is nothing to add to the name."""
    for names, text in REASONS.items():
        if name in names:
            return text
    return ""


def terms(keys: Iterable[str]) -> list[tuple[str, str]]:
    """The explanations of *keys*, each once, in the order of :data:`TERMS`."""
    wanted = set(keys)
    return [(key, text) for key, text in TERMS.items() if key in wanted]


def share(part: float, whole: float) -> str:
    """``40 %``; small shares with two digits."""
    if not whole:
        return "0 %"
    value = part / whole
    return f"{100 * value:.0f} %" if value >= 0.0995 or not value else f"{100 * value:.2g} %"


def percent(value: float, sign: bool = False) -> str:
    """A share of 1 to a tenth of a percent: ``4.1 %``, with *sign* ``+4.1 %``."""
    tenths = round(1000 * value) / 10 + 0.0
    return f"{tenths:+.1f} %" if sign and tenths else f"{tenths:.1f} %"


def many(count: float, noun: str) -> str:
    """``1 exit``, ``2 exits``, ``3,000 exits``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sentence(text: str) -> str:
    """With a capital first letter and a full stop."""
    return capital(text) if text.endswith((".", "!", "?")) else f"{capital(text)}."


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]
