from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.live import permissions


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def status(root: Path, *capabilities: int) -> None:
    put(root, "proc/self/status", f"Name:\tpython\nCapEff:\t{sum(1 << number for number in capabilities):016x}\n")


@pytest.mark.parametrize(("level", "refused"), [(-1, False), (0, True), (2, True), (4, True)])
def test_without_capabilities_only_minus_one_lets_perf_record(tmp_path: Path, level: int, refused: bool) -> None:
    # Linux, Documentation/admin-guide/sysctl/kernel.rst, perf_event_paranoid.
    status(tmp_path)
    put(tmp_path, "proc/sys/kernel/perf_event_paranoid", f"{level}\n")
    assert (permissions.perf_refused(tmp_path) is not None) is refused


@pytest.mark.parametrize("capability", [38, 21])  # CAP_PERFMON, CAP_SYS_ADMIN: include/uapi/linux/capability.h
def test_a_capability_lets_perf_record_at_any_level(tmp_path: Path, capability: int) -> None:
    status(tmp_path, capability)
    put(tmp_path, "proc/sys/kernel/perf_event_paranoid", "4")
    assert permissions.perf_refused(tmp_path) is None


def test_a_refusal_names_the_value_and_what_to_set(tmp_path: Path) -> None:
    status(tmp_path)
    put(tmp_path, "proc/sys/kernel/perf_event_paranoid", "3")
    reason = permissions.perf_refused(tmp_path) or ""
    assert "kernel.perf_event_paranoid is 3" in reason
    assert "sudo sysctl -w kernel.perf_event_paranoid=-1" in reason


@pytest.mark.parametrize(
    ("text", "locked"),
    [
        ("none integrity [confidentiality]", True),
        ("none [integrity] confidentiality", False),
        ("[none] integrity confidentiality", False),
    ],
)
def test_lockdown_closes_tracing_only_at_confidentiality(tmp_path: Path, text: str, locked: bool) -> None:
    # kernel_lockdown(7): tracefs and perf are restricted in confidentiality mode.
    put(tmp_path, "sys/kernel/security/lockdown", text)
    assert (permissions.locked_down(tmp_path) is not None) is locked


@pytest.mark.parametrize(
    ("flags", "says"),
    [("fpu vmx sse2", "modprobe kvm_intel"), ("fpu svm sse2", "modprobe kvm_amd"), ("fpu", "neither vmx nor svm")],
)
def test_a_missing_kvm_module_is_told_with_its_name(tmp_path: Path, flags: str, says: str) -> None:
    put(tmp_path, "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n")
    assert says in permissions.no_kvm_events(tmp_path)


def test_a_loaded_kvm_without_events_is_the_kernels_configuration(tmp_path: Path) -> None:
    put(tmp_path, "sys/module/kvm/version", "")
    assert "CONFIG_TRACING" in permissions.no_kvm_events(tmp_path)


def test_tracefs_that_is_not_mounted_comes_with_the_mount(tmp_path: Path) -> None:
    put(tmp_path, "proc/filesystems", "nodev\ttracefs\n")
    assert "mount -t tracefs nodev /sys/kernel/tracing" in permissions.no_tracefs(None, tmp_path)


def test_a_kernel_without_tracefs_is_told_apart(tmp_path: Path) -> None:
    put(tmp_path, "proc/filesystems", "nodev\tproc\n")
    assert "CONFIG_TRACING is off" in permissions.no_tracefs(None, tmp_path)


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"', "linux-tools-$(uname -r)"),
        ("ID=debian", "apt install linux-perf"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install perf"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "zypper install perf"),
        ("ID=plan9", "linux-tools or perf"),
    ],
)
def test_how_to_get_perf_depends_on_the_distribution(tmp_path: Path, release: str, command: str) -> None:
    put(tmp_path, "etc/os-release", release + "\n")
    assert command in permissions.how_to_get_perf(tmp_path)


@pytest.mark.parametrize(("source", "slow"), [("tsc", False), ("kvm-clock", False), ("hpet", True), ("acpi_pm", True)])
def test_a_clock_source_outside_the_processor_is_slow(tmp_path: Path, source: str, slow: bool) -> None:
    put(tmp_path, "sys/devices/system/clocksource/clocksource0/current_clocksource", source + "\n")
    assert permissions.slow_clock(tmp_path) is slow


@pytest.mark.parametrize(
    ("cpus", "gib", "kib"), [(2, 8, 8192), (64, 256, 8192), (256, 16, 4096), (256, 4, 1024), (512, 1, 512)]
)
def test_buffers_stay_under_a_sixteenth_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, gib: int, kib: int
) -> None:
    put(tmp_path, "proc/meminfo", f"MemTotal:       {gib << 20} kB\n")
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert permissions.buffer_bytes(tmp_path) == kib << 10


def test_files_that_cannot_be_read_are_no_error(tmp_path: Path) -> None:
    assert permissions.paranoid(tmp_path) == 2
    assert permissions.capable(38, tmp_path) is False
    assert permissions.locked_down(tmp_path) is None
