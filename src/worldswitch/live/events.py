"""Which trace events to record: named sets, and single events, of those a kernel has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worldswitch.errors import MissingError, UnknownNameError, UsageError

DEFAULT = (
    "kvm_exit",
    "kvm_entry",
    "kvm_userspace_exit",
    "kvm_fpu",
    "kvm_cr",
    "kvm_inj_exception",
    "kvm_nested_vmexit",
    "kvm_emulate_insn",
    "kvm_msr",
    "kvm_cpuid",
    "kvm_pio",
    "kvm_page_fault",
    "kvm_mmio",
    "kvm_fast_mmio",
    "kvm_hypercall",
)
"""What the analysis uses, no more: the events of :data:`worldswitch.trace.exits.EVENTS`."""

CONTROL_REGISTERS = ("kvm_exit", "kvm_entry", "kvm_cr", "kvm_emulate_insn", "kvm_page_fault")
"""What tells the cost of control-register writes: the exit, its end, the value, the instruction where KVM emulates
it, and the faults that follow when KVM dropped its page tables."""

CONTROL_REGISTER_EXITS = (
    "(isa == 1 && exit_reason == 28) || (isa == 2 && (exit_reason == 0x65 || "
    "(exit_reason >= 0x10 && exit_reason <= 0x18)))"
)
"""A kernel-side filter on kvm_exit that passes control-register exits only: CR_ACCESS of VMX (Intel SDM volume 3,
appendix C); CR writes and CR0_SEL_WRITE of SVM (AMD APM volume 2, appendix C)."""

SYSTEMS = ("kvm", "kvmmmu")
"""Where KVM's events live; ``all`` means all of both."""

_SETS: dict[str, tuple[str, ...]] = {"default": DEFAULT, "cr": CONTROL_REGISTERS}


def choose(wanted: str, available: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The events to record, as ``system:event``, and the events of the named sets this kernel lacks.

    Args:
        wanted: Comma-separated: ``default``, ``cr``, ``all``, an event, or ``system:event``.
        available: System -> the events this kernel has.

    Raises:
        UnknownNameError: A single event that this kernel does not have.
        UsageError: *wanted* names nothing.
        MissingError: The kernel has none of the events.
    """
    chosen: dict[str, None] = {}
    absent: dict[str, None] = {}
    words = [word.strip() for word in wanted.split(",") if word.strip()]
    if not words:
        raise UsageError("--events names no event; write default, cr, all, or events such as kvm_exit,kvm_entry")
    for word in words:
        if word == "all":
            chosen |= {f"{system}:{name}": None for system in SYSTEMS for name in available.get(system, ())}
        elif word in _SETS:
            present = set(available.get("kvm", ()))
            chosen |= {f"kvm:{name}": None for name in _SETS[word] if name in present}
            absent |= {name: None for name in _SETS[word] if name not in present}
        else:
            chosen[_one(word, available)] = None
    if not chosen:
        raise MissingError(f"this kernel has none of the events {wanted}; see /sys/kernel/tracing/events/kvm")
    return tuple(chosen), tuple(absent)


def _one(word: str, available: Mapping[str, Sequence[str]]) -> str:
    system, colon, name = word.rpartition(":")
    for candidate in (system,) if colon else (*SYSTEMS, *available):
        if name in available.get(candidate, ()):
            return f"{candidate}:{name}"
    known = [*_SETS, "all", *(name for system in SYSTEMS for name in available.get(system, ()))]
    if colon:
        known = [f"{system}:{name}" for system, names in available.items() for name in names]
    raise UnknownNameError("event", word, known, "Those this kernel has are in /sys/kernel/tracing/events.")
