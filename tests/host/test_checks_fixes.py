"""What exactly is advised, and how exactly it is undone, where kernels differ."""

from __future__ import annotations

import pytest

from host.machines import VULNERABILITIES, changed, findings, machine, made
from worldswitch.host.finding import (
    BootParameter,
    ByHand,
    DropIn,
    Profile,
    ReloadModules,
    Remove,
    Run,
    Write,
)

NX = "/sys/module/kvm/parameters/nx_huge_pages"
OPTIONS = "/etc/modprobe.d/worldswitch-kvm-nx_huge_pages.conf"


def only(id, files, profile=Profile.DEFAULT):
    (one,) = findings(id, made(files), profile)
    return one


def test_never_is_written_at_once_but_only_loading_kvm_anew_takes_it_back():
    """set_nx_huge_pages: every write after never fails with EPERM."""
    found = only("nx-recovery-thread", machine("amd", "6.1.100"), Profile.FAAS)
    options, write = found.fix.steps
    assert write == Write(NX, "never")
    assert options.path == OPTIONS and options.text.endswith("options kvm nx_huge_pages=never\n")
    assert found.undo.steps == (Remove(OPTIONS), ReloadModules(("kvm_amd", "kvm")))


def test_never_waits_for_the_next_load_where_vms_run():
    """Writing it gives EBUSY while a VM exists; each VM holds a reference on the vendor's module."""
    files = changed(machine("amd", "6.1.100"), ("/proc/modules", "kvm_amd 1 3 - Live 0x0\nkvm 1 1 kvm_amd, Live 0x0"))
    steps = only("nx-recovery-thread", files, Profile.FAAS).fix.steps
    assert not any(isinstance(step, Write) for step in steps) and ReloadModules(("kvm_amd", "kvm")) in steps


def test_never_gains_what_was_measured_and_says_what_a_grace_period_is_here():
    """June 2023: 23.567, 76.709 and 109.109 ms against 0.518, 0.495 and 0.513."""
    gain = only("nx-recovery-thread", machine("amd", "6.1.100"), Profile.FAAS).gain
    assert gain.amount.low == pytest.approx(23.0, abs=0.1)
    assert gain.amount.mid == pytest.approx(76.2, abs=0.1)
    assert gain.amount.high == pytest.approx(108.6, abs=0.1)
    assert ("one grace period here" in [name for name, _, _ in gain.inputs]) and "June 2023" in gain.origin


@pytest.mark.parametrize("profile", Profile)
def test_a_processor_with_the_bug_is_never_told_never(profile):
    for kernel in ("5.10.177", "6.1.100", "6.12.117", "7.2.13"):
        for id in ("nx-huge-pages", "nx-recovery-thread", "favordynmods"):
            for found in findings(id, made(machine("intel", kernel, True)), profile):
                assert "never" not in str(found.fix.steps)


def test_5_10_reads_never_as_off_and_is_told_of_other_kernels():
    files = changed(machine("amd", "5.10.223"), ("/proc/cmdline", "kvm.nx_huge_pages=never"))
    found = only("nx-huge-pages", files)
    assert "as off" in found.title and found.rule == "nx-never"
    assert all(isinstance(step, ByHand) for step in found.fix.steps)


def test_off_with_the_bug_goes_back_to_auto_and_to_force_where_auto_would_not_help():
    """auto is bug present and not mitigations=off."""
    off = changed(machine("intel"), ("kvm.nx_huge_pages", "N"))
    assert only("nx-huge-pages", off).fix.steps[0] == Write(NX, "auto")
    given = changed(off, ("/proc/cmdline", "mitigations=off"))
    assert only("nx-huge-pages", given).fix.steps[0] == Write(NX, "force")


def test_off_under_shadow_paging_is_no_matter():
    """multihit.rst: without EPT KVM is in control of TLB flushes and the situation cannot happen."""
    files = changed(machine("intel"), ("kvm.nx_huge_pages", "N"), ("kvm_intel.ept", "N"))
    assert only("nx-huge-pages", files, Profile.HARDENED).severity.label == "ok"


REMOUNT = ("mount", "-o", "remount,memory_recursiveprot,nsdelegate,favordynmods", "/sys/fs/cgroup")
WITHOUT = (
    "mount", "-t", "cgroup2", "-o", "remount,memory_recursiveprot,nsdelegate", "cgroup2", "/sys/fs/cgroup",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "at_boot", "reboot"),
    [("6.1.100", "service", False), ("6.12.117", "parameter", False), ("7.2.13", "parameter", True)],
)
def test_favordynmods_is_undone_by_a_remount_until_6_18_and_by_a_reboot_from_then_on(kernel, at_boot, reboot):
    """cgroup_favor_dynmods: from 6.18 on the per-threadgroup part cannot be disabled. A remount sets all options anew,
    so those that the hierarchy has are said again; the command line knows cgroup_favordynmods= since 6.7."""
    found = only("favordynmods", machine("intel", kernel), Profile.FAAS)
    first, *good = found.fix.steps
    assert first == Run(REMOUNT)
    if at_boot == "parameter":
        assert good == [BootParameter("cgroup_favordynmods=1")]
        assert BootParameter("cgroup_favordynmods=1", remove=True) in found.undo.steps
    else:
        assert isinstance(good[0], DropIn) and " ".join(REMOUNT) in good[0].text
        assert Remove(good[0].path) in found.undo.steps
    assert found.undo.steps[-1] == Run(WITHOUT)
    assert found.undo.needs_reboot is reboot
    assert ("cannot be switched off" in found.risk) is reboot


def test_5_10_needs_no_favordynmods():
    """6a010a49b63a made optional what was so from boot on before."""
    assert only("favordynmods", machine("amd", "5.10.223"), Profile.FAAS).severity.label == "ok"


def test_favordynmods_is_no_remedy_for_kvm_where_the_thread_does_not_attach():
    """From 6.13 on (6.12.3 by backport) the thread is a vhost_task."""
    found = only("favordynmods", machine("intel", "6.12.117"), Profile.FAAS)
    assert "KVM_CREATE_VM does not change" in found.gain.text
    assert found.gain.amount.unit == "ms per move between control groups"


def test_favordynmods_is_a_remedy_too_where_never_is_the_cheaper_one():
    found = only("favordynmods", machine("amd", "6.1.100"))
    assert "nx_huge_pages=never spares" in found.title and found.gain.amount.unit == "ms per KVM_CREATE_VM"


def test_a_jail_on_5_4_gains_what_was_measured_there():
    """firecracker#2129: 27.335 ms in the jailer's cgroups, 0.352 ms in none; favordynmods is no remedy for cpusets."""
    found = only("nx-recovery-thread", machine("intel", "5.4.69"), Profile.FAAS)
    assert found.rule == "cgroup-cpuset-wait" and found.gain.amount.mid == pytest.approx(26.98, abs=0.01)


def test_the_hardened_profile_gets_favordynmods_instead_of_never():
    files = machine("amd", "6.1.100")
    thread = only("nx-recovery-thread", files, Profile.HARDENED)
    assert not thread.fix.steps
    assert only("favordynmods", files, Profile.HARDENED).fix.steps[0] == Run(REMOUNT)


def test_a_parameter_on_the_command_line_is_taken_from_there():
    """modprobe adds the command line's options behind those of modprobe.d, so they win."""
    files = changed(machine("intel"), ("kvm_intel.pml", "N"), ("/proc/cmdline", "ro kvm-intel.pml=0"))
    found = only("pml", files)
    assert BootParameter("kvm-intel.pml=0", remove=True) in found.fix.steps
    assert BootParameter("kvm-intel.pml=0") in found.undo.steps
    assert not any(isinstance(step, ReloadModules) for step in found.fix.steps) and found.fix.needs_reboot


def test_a_module_that_is_built_in_gets_a_boot_parameter():
    files = changed(machine("intel"), ("kvm_intel.pml", "N"), ("/boot/config-6.12.117", "CONFIG_KVM_INTEL=y"))
    found = only("pml", files)
    assert found.fix.steps == (BootParameter("kvm_intel.pml=1"),) and found.fix.needs_reboot
    assert found.undo.steps == (BootParameter("kvm_intel.pml=1", remove=True),)


def test_a_module_that_is_loaded_is_loaded_anew():
    found = only("pml", changed(machine("intel"), ("kvm_intel.pml", "N")))
    options, again = found.fix.steps
    assert options.text.endswith("options kvm_intel pml=1\n") and again == ReloadModules(("kvm_intel", "kvm"))


def test_the_tdp_mmu_of_5_10_is_switched_off_at_once():
    """0644 and sampled when a VM is created until 6.3. Published: 88.7 s with it, 10.37 s without (5.10.177)."""
    found = only("tdp-mmu", machine("intel", "5.10.177"), Profile.HARDENED)
    assert found.fix.steps[0] == Write("/sys/module/kvm/parameters/tdp_mmu", "0")
    assert found.gain.amount.mid == pytest.approx(88.7 / 10.37)


def test_what_cr0_wp_gains_is_told_by_line_and_mmu():
    """6.1.23 with the TDP MMU: 8.23 s, after the patches 3.36 s; nobody measured 6.4 lines or AMD so."""
    found = only("cr0-wp", machine("intel", "6.1.20"), Profile.HARDENED)
    assert found.gain.amount.mid == pytest.approx(8.23 / 3.36)
    assert "026dcbfe-a306-85c3-600e-17cae3d3b7c5" in found.gain.origin


def test_isolated_cpus_keep_their_list():
    files = changed(machine(), ("/sys/devices/system/cpu/isolated", "2-7"), ("/sys/devices/system/cpu/nohz_full", ""))
    found = only("isolated-cpus", files, Profile.REALTIME)
    assert found.fix.steps == (BootParameter("nohz_full=2-7"), BootParameter("rcu_nocbs=2-7"))
    assert found.gain.amount.high == 250  # CONFIG_HZ


@pytest.mark.parametrize(
    ("mask", "expected"), [("ff", "03"), ("ffffffff,ffffffff", "ffffffff,ffffff03"), ("0ff", "003")]
)
def test_interrupts_are_kept_off_isolated_cpus(mask, expected):
    files = changed(machine(), ("/sys/devices/system/cpu/isolated", "2-7"), ("/proc/irq/default_smp_affinity", mask))
    found = only("irq-affinity", files, Profile.REALTIME)
    assert found.fix.steps == (Write("/proc/irq/default_smp_affinity", expected),)
    assert found.undo.steps == (Write("/proc/irq/default_smp_affinity", mask),)


def test_a_burst_is_reckoned_with_100_vms_per_cpu_of_four_threads():
    found = only("thread-limits", changed(machine(), ("/proc/sys/kernel/pid_max", "2000")), Profile.FAAS)
    assert found.gain.amount.mid == (8 * 100 * 4 - 2000) / 4
    assert found.fix.steps[0] == Write("/proc/sys/kernel/pid_max", "4096")


def test_unmerging_says_how_much_memory_it_takes():
    files = changed(machine(), ("/sys/kernel/mm/ksm/run", "1"), ("/sys/kernel/mm/ksm/pages_sharing", "262144"))
    found = only("ksm", files, Profile.HARDENED)
    assert "1,024 MiB" in found.risk and found.fix.steps[0] == Write("/sys/kernel/mm/ksm/run", "2")


def test_a_guest_is_told_that_microcode_comes_from_below():
    files = changed(machine("amd"), (f"{VULNERABILITIES}/spec_rstack_overflow", "Vulnerable: Safe RET, no microcode"))
    assert "microcode and firmware" in only("vulnerable", files).fix.text
    guest = changed(files, ("/proc/cpuinfo", files["/proc/cpuinfo"].replace("fpu msr", "fpu msr hypervisor")))
    assert "hypervisor below" in only("vulnerable", guest).fix.text


def test_a_stable_kernel_is_told_the_first_version_that_has_all_fixes():
    """never came with 6.1.53, the roots stay since 6.1.50, CR0.WP is owned since 6.1.29 (under VMX only)."""
    assert "Boot 6.1.53 or newer" in only("kernel-fixes", machine("intel", "6.1.20")).fix.text
    assert "cr0-wp-owned" not in only("kernel-fixes", machine("amd", "6.1.20")).title
    assert only("kernel-fixes", machine("intel", "6.1.190")).severity.label == "ok"


def test_fixes_that_cost_no_speed_are_worth_a_word_only():
    assert only("kernel-fixes", machine("intel", "5.15.120")).severity.label == "info"
