"""Formats for events that come without one: from a text, or from a model.

Fields have the kernel's names, order and C alignment (arch/x86/kvm/trace.h, arch/x86/kvm/mmu/mmutrace.h), as
far as the columns at hand hold them; what is printed reads as the kernel prints it. An event not in the
table gets all its columns, printed as ``name=value``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from worldswitch.record.formats import EventFormat, parse_format
from worldswitch.record.trace import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMMON = (
    "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
    "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
    "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
)
_TYPES = {
    "u1": "u8", "u2": "u16", "u4": "u32", "u8": "u64", "i1": "s8", "i2": "s16", "i4": "int", "i8": "s64",
    "b": "bool"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What the kernel says of one event.

    Attributes:
        fields: ``name:type`` words in order; types u1 to u8, i1 to i8, ``b`` for bool, ``[n]`` for n bytes.
        prints: Pieces of the line: (format, arguments); a piece is left out where a field it names is
        missing. system: The event's system.
    """

    fields: str
    prints: tuple[tuple[str, str], ...]
    system: str = "kvm"


_RW = '__print_symbolic(REC->{}, {{ 0, "read" }}, {{ 1, "write" }})'
_EXIT = Known(
    "exit_reason:u4 guest_rip:u8 isa:u4 info1:u8 info2:u8 intr_info:u4 error_code:u4 vcpu_id:u4 requests:u8",
    (
        ("vcpu %u ", "REC->vcpu_id"),
        ("reason %s%s%s", "EXIT_REASON"),
        (" rip 0x%lx", "REC->guest_rip"),
        (" info1 0x%016llx", "REC->info1"),
        (" info2 0x%016llx", "REC->info2"),
        (" intr_info 0x%08x", "REC->intr_info"),
        (" error_code 0x%08x", "REC->error_code"),
        (" requests 0x%016llx", "REC->requests"),
    ),
)

KNOWN: dict[str, Known] = {
    "kvm_entry": Known(
        "vcpu_id:u4 rip:u8 immediate_exit:b intr_info:u4 error_code:u4",
        (
            ("vcpu %u", "REC->vcpu_id"),
            (", rip 0x%lx", "REC->rip"),
            (" intr_info 0x%08x error_code 0x%08x", "REC->intr_info, REC->error_code"),
            ("%s", 'REC->immediate_exit ? "[immediate exit]" : ""'),
        ),
    ),
    "kvm_exit": _EXIT,
    "kvm_nested_vmexit": _EXIT,
    "kvm_cr": Known("rw:u4 cr:u4 val:u8", (("cr_%s %x = 0x%lx", _RW.format("rw") + ", REC->cr, REC->val"),)),
    "kvm_page_fault": Known(
        "vcpu_id:u4 guest_rip:u8 fault_address:u8 error_code:u8",
        (
            ("vcpu %u rip 0x%lx ", "REC->vcpu_id, REC->guest_rip"),
            ("address 0x%016llx error_code 0x%llx", "REC->fault_address, REC->error_code"),
        ),
    ),
    "kvm_hypercall": Known(
        "nr:u8 a0:u8 a1:u8 a2:u8 a3:u8",
        (
            (
                "nr 0x%lx a0 0x%lx a1 0x%lx a2 0x%lx  a3 0x%lx",
                "REC->nr, REC->a0, REC->a1, REC->a2, REC->a3",
            ),
        ),
    ),
    "kvm_msr": Known(
        "write:u4 ecx:u4 data:u8 exception:u1",
        (
            ("msr_%s %x = 0x%llx", _RW.format("write") + ", REC->ecx, REC->data"),
            ("%s", 'REC->exception ? " (#GP)" : ""'),
        ),
    ),
    "kvm_pio": Known(
        "rw:u4 port:u4 size:u4 count:u4 val:u4",
        (
            (
                "pio_%s at 0x%x size %d count %d",
                _RW.format("rw") + ", REC->port, REC->size, REC->count",
            ),
            (" val 0x%x", "REC->val"),
            ("%s", 'REC->count > 1 ? "(...)" : ""'),
        ),
    ),
    "kvm_mmio": Known(
        "type:u4 len:u4 gpa:u8 val:u8",
        (
            (
                "mmio %s len %u gpa 0x%llx val 0x%llx",
                '__print_symbolic(REC->type, { 0, "unsatisfied-read" }, { 1, "read" }, { 2, "write" })'
                ", REC->len, REC->gpa, REC->val",
            ),
        ),
    ),
    "kvm_fpu": Known("load:u4", (("%s", '__print_symbolic(REC->load, { 0, "unload" }, { 1, "load" })'),)),
    "kvm_cpuid": Known(
        "function:u4 index:u4 rax:u8 rbx:u8 rcx:u8 rdx:u8 found:b used_max_basic:b",
        (
            (
                "func %x idx %x rax %lx rbx %lx rcx %lx rdx %lx, cpuid entry %s%s",
                "REC->function, REC->index, REC->rax, REC->rbx, REC->rcx, REC->rdx"
                ', REC->found ? "found" : "not found", REC->used_max_basic ? ", used max basic" : ""',
            ),
        ),
    ),
    "kvm_emulate_insn": Known(
        "rip:u8 csbase:u4 len:u1 insn:[15] flags:u1 failed:u1",
        (
            ("%x:%llx:%s", "REC->csbase, REC->rip, __print_hex(REC->insn, REC->len)"),
            (
                " (%s)",
                '__print_symbolic(REC->flags, { 0, "real" }, { 3, "vm16" }, { 1, "prot16" }, { 5, "prot32" }'
                ', { 9, "prot64" })',
            ),
            ("%s", 'REC->failed ? " failed" : ""'),
        ),
    ),
    "kvm_userspace_exit": Known("reason:u4 errno:i4", (("reason %s", "USERSPACE_REASON"),)),
    "kvm_mmu_spte_requested": Known(
        "gfn:u8 pfn:u8 level:u1 access:u1",
        (("gfn %llx pfn %llx level %d", "REC->gfn, REC->pfn, REC->level"),),
        "kvmmmu",
    ),
    "kvm_tdp_mmu_spte_changed": Known(
        "gfn:u8 old_spte:u8 new_spte:u8 level:u1 as_id:u1",
        (
            (
                "as id %d gfn %llx level %d old_spte %llx new_spte %llx",
                "REC->as_id, REC->gfn, REC->level, REC->old_spte, REC->new_spte",
            ),
        ),
        "kvmmmu",
    ),
    "kvm_mmu_split_huge_page": Known(
        "gfn:u8 spte:u8 level:i4 errno:i4",
        (("gfn %llx spte %llx level %d errno %d", "REC->gfn, REC->spte, REC->level, REC->errno"),),
        "kvmmmu",
    ),
}

_UNPARSED = ":unparsed"  # what readers of texts append to an event whose line they did not understand
_MMU = ("kvm_mmu_", "kvm_tdp_mmu_", "fast_page_fault", "mark_mmio_spte", "handle_mmio_", "check_mmio_spte")


def generated(name: str, columns: Columns, number: int) -> EventFormat:
    """A format that holds every one of *columns*.

    Args:
        name: Table name of the event; ``system:name`` names the system.
        columns: The event's own columns.
        number: Its id.
    """
    system, _, short = ("", "", name) if name.endswith(_UNPARSED) else name.rpartition(":")
    known = KNOWN.get(short)
    system = system or (known.system if known else "kvmmmu" if short.startswith(_MMU) else "kvm")
    fields = dict(_fields(known, columns))
    text = f"name: {_word(short)}\nID: {number}\nformat:\n{_COMMON}{_field_lines(fields)}\n"
    text += f"print fmt: {_print_format(known, fields)}\n"
    return parse_format(text, system)


def _fields(known: Known | None, columns: Columns) -> Iterator[tuple[str, str]]:
    """Name and type of each field: the kernel's first, then what else there is."""
    declared = dict(word.split(":") for word in known.fields.split()) if known else {}
    for name, kind in declared.items():
        if name in columns and _holds(kind, columns[name]):
            yield name, kind
    for name, column in columns.items():
        if not (name in declared and _holds(declared[name], column)) and _word(name) == name:
            yield name, _kind(column)


def _holds(kind: str, column: NDArray[Any]) -> bool:
    """Whether a field of this type can say every value the column's type can, or is as the kernel has it."""
    return (column.ndim == 2) == kind.startswith("[") and column.dtype != object


def _kind(column: NDArray[Any]) -> str:
    if column.ndim == 2:
        return f"[{column.shape[1]}]"
    if column.dtype == object or column.dtype.kind not in "iub":
        return "text"
    return "b" if column.dtype == np.bool_ else column.dtype.str[1:]


def _field_lines(fields: dict[str, str]) -> str:
    lines = []
    offset = 8
    for name, kind in fields.items():
        size, align, declaration = _declared(name, kind)
        offset = -(-offset // align) * align
        signed = int(kind[0] == "i")
        lines.append(f"\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
        offset += size
    return "".join(lines)


def _declared(name: str, kind: str) -> tuple[int, int, str]:
    """Size, alignment and C declaration."""
    if kind == "text":
        return 4, 4, f"__data_loc char[] {name}"
    if kind.startswith("["):
        return int(kind[1:-1]), 1, f"__u8 {name}{kind}"
    size = 1 if kind == "b" else int(kind[1])
    return size, size, f"{_TYPES[kind]} {name}"


def _print_format(known: Known | None, fields: dict[str, str]) -> str:
    formats, arguments = "", []
    for piece, wanted in known.prints if known else ():
        if all(name in fields for name in _named(wanted)):
            formats += piece
            arguments.append(_expanded(wanted))
    if not formats:
        for name, kind in fields.items():
            formats += (" " if formats else "") + ("%s" if name == "text" else f"{name}={_conversion(kind)}")
            arguments.append(_argument(name, kind))
    return ", ".join([f'"{formats}"', *arguments])


def _conversion(kind: str) -> str:
    if kind == "text" or kind.startswith("["):
        return "%s"
    return "%lld" if kind[0] == "i" else "%u" if kind == "b" else "0x%llx"


def _argument(name: str, kind: str) -> str:
    if kind == "text":
        return f"__get_str({name})"
    if kind.startswith("["):
        return f"__print_hex(REC->{name}, {kind[1:-1]})"
    return f"REC->{name}"


def _named(arguments: str) -> list[str]:
    import re

    special = {"EXIT_REASON": ["exit_reason", "isa"], "USERSPACE_REASON": ["reason", "errno"]}
    return special.get(arguments) or re.findall(r"REC->(\w+)", arguments)


def _expanded(arguments: str) -> str:
    from worldswitch.x86 import exits

    tables = exits.builtin()
    if arguments == "EXIT_REASON":
        vmx, svm = tables.isas[exits.ISA_VMX], tables.isas[exits.ISA_SVM]
        flags = "REC->isa == 1 && REC->exit_reason & ~0xffff"
        return (
            f"(REC->isa == 1) ? {_symbolic('REC->exit_reason & 0xffff', vmx.names)}"
            f" : {_symbolic('REC->exit_reason', svm.names)}"
            f', ({flags}) ? " " : ""'
            f', ({flags}) ? __print_flags(REC->exit_reason & ~0xffff, " ", {_pairs(vmx.flags)}) : ""'
        )
    if arguments == "USERSPACE_REASON":
        named = _symbolic("REC->reason", {n: f"{name} ({n})" for n, name in tables.userspace.items()})
        return f'REC->errno < 0 ? (REC->errno == -4 ? "restart (4)" : "error") : {named}'
    return arguments


def _symbolic(value: str, names: Any) -> str:
    return f"__print_symbolic({value}, {_pairs(names)})"


def _pairs(names: Any) -> str:
    return ", ".join(f'{{ 0x{number:x}, "{name}" }}' for number, name in names.items())


def _word(name: str) -> str:
    """*name* with what a format text cannot hold replaced."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return kept if kept and not kept[0].isdigit() else f"_{kept}"
