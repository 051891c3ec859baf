from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from worldswitch.live import ioctl

STRUCTURES = {
    "kvm_userspace_memory_region": ioctl.REGION.size,
    "kvm_enable_cap": ioctl.ENABLE.size,
    "kvm_regs": ioctl.REGS.size,
    "kvm_segment": ioctl.SEGMENT.size,
    "kvm_dtable": ioctl.TABLE.size,
    "kvm_sregs": ioctl.SREGS_SIZE,
    "kvm_cpuid2": ioctl.CPUID_HEAD.size,
    "kvm_cpuid_entry2": ioctl.CPUID_ENTRY.size,
    "kvm_translation": ioctl.TRANSLATION.size,
}
MEMBERS = {
    ("kvm_sregs", "gdt"): ioctl.GDT,
    ("kvm_sregs", "idt"): ioctl.IDT,
    ("kvm_sregs", "cr0"): ioctl.CR0,
    ("kvm_sregs", "cr2"): ioctl.CR2,
    ("kvm_sregs", "cr3"): ioctl.CR3,
    ("kvm_sregs", "cr4"): ioctl.CR4,
    ("kvm_sregs", "cr8"): ioctl.CR8,
    ("kvm_sregs", "efer"): ioctl.EFER,
    ("kvm_run", "immediate_exit"): ioctl.IMMEDIATE_EXIT,
    ("kvm_run", "exit_reason"): ioctl.EXIT_REASON,
    ("kvm_run", "flags"): ioctl.RUN_FLAGS,
    ("kvm_run", "io"): ioctl.UNION,
    ("kvm_run", "hypercall.ret"): ioctl.HYPERCALL_RET,
    ("kvm_run", "io.data_offset"): ioctl.UNION + 8,
    ("kvm_run", "mmio.is_write"): ioctl.UNION + 20,
    ("kvm_run", "internal.data"): ioctl.UNION + ioctl.RUN_INTERNAL.size,
    ("kvm_run", "msr.data"): ioctl.UNION + ioctl.RUN_MSR.size - 8,
    ("kvm_regs", "rip"): 8 * ioctl.REGISTERS.index("rip"),
    ("kvm_regs", "rsp"): 8 * ioctl.REGISTERS.index("rsp"),
    ("kvm_regs", "r15"): 8 * ioctl.REGISTERS.index("r15"),
    **{("kvm_sregs", name): at for name, at in ioctl.SEGMENTS.items()},
}
CALLS = (
    "GET_API_VERSION", "CREATE_VM", "CHECK_EXTENSION", "GET_VCPU_MMAP_SIZE", "GET_SUPPORTED_CPUID", "CREATE_VCPU",
    "SET_USER_MEMORY_REGION", "SET_TSS_ADDR", "SET_IDENTITY_MAP_ADDR", "RUN", "GET_REGS", "SET_REGS", "GET_SREGS",
    "SET_SREGS", "TRANSLATE", "SET_CPUID2", "GET_TSC_KHZ", "ENABLE_CAP",
)  # fmt: skip


def test_numbers_are_those_of_the_kernels_headers() -> None:
    # Read off a C program compiled with Linux 6.1's and 7.3's headers.
    assert ioctl.CREATE_VM == 0xAE01
    assert ioctl.SET_USER_MEMORY_REGION == 0x4020AE46
    assert ioctl.GET_SUPPORTED_CPUID == 0xC008AE05
    assert ioctl.ENABLE_CAP == 0x4068AEA3
    assert (ioctl.GET_REGS, ioctl.SET_REGS) == (0x8090AE81, 0x4090AE82)
    assert (ioctl.GET_SREGS, ioctl.SET_SREGS) == (0x8138AE83, 0x4138AE84)
    assert ioctl.GET_STATS_FD == 0xAECE


@pytest.mark.needs("gcc")
@pytest.mark.skipif(not Path("/usr/include/linux/kvm.h").exists(), reason="no kernel headers")
def test_the_c_compiler_agrees_on_every_number_size_and_offset(tmp_path: Path) -> None:
    lines = [f'printf("%lu\\n", (unsigned long)KVM_{name});' for name in CALLS]
    lines += [f'printf("%lu\\n", sizeof(struct {name}));' for name in STRUCTURES]
    lines += [f'printf("%lu\\n", offsetof(struct {s}, {m}));' for s, m in MEMBERS]
    source = tmp_path / "numbers.c"
    source.write_text(
        "#include <linux/kvm.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {" + "\n".join(lines) + "}"
    )
    subprocess.run(["gcc", "-o", tmp_path / "numbers", source], check=True, capture_output=True)
    said = subprocess.run([tmp_path / "numbers"], check=True, capture_output=True, text=True).stdout.split()
    assert [int(word) for word in said] == [
        *(getattr(ioctl, name) for name in CALLS), *STRUCTURES.values(), *MEMBERS.values(),
    ]  # fmt: skip


@pytest.mark.skipif(not Path("/usr/include/linux/kvm.h").exists(), reason="no kernel headers")
def test_exits_and_capabilities_are_those_of_the_header() -> None:
    header = Path("/usr/include/linux/kvm.h").read_text()
    exits = {name: int(n) for name, n in re.findall(r"#define KVM_EXIT_(\w+)\s+(\d+)\s", header)}
    capabilities = {name: int(n) for name, n in re.findall(r"#define KVM_CAP_(\w+)\s+(\d+)\s", header)}
    for name, number in ioctl.EXIT_NUMBERS.items():
        assert exits.get(name, number) == number
    for name, number in ioctl.CAPABILITIES.items():
        assert capabilities.get(name, number) == number
    assert len(exits.keys() & ioctl.EXIT_NUMBERS.keys()) > 20
