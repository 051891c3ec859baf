"""What is kept of the files the doctor reads: nothing that is secret or names people, machines or containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.host import allowed, parse


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("BOOT_IMAGE=/vmlinuz root=UUID=12-34 ro quiet", "* * ro quiet"),
        ("rd.luks.key=hunter2 ip=10.0.0.5::10.0.0.1 mitigations=off", "* * mitigations=off"),
        ("kvm.nx_huge_pages=never kvm-intel.ept=0", "kvm.nx_huge_pages=never kvm-intel.ept=0"),
        ("hunter2 quiet", "* quiet"),
        ('dyndbg="file x +p; secret" isolcpus="1-3, 5"', '* "isolcpus=1-3, 5"'),
        ("quiet -- password=x", "quiet"),
        ("ssid:pass=word", "*"),
    ],
)
def test_of_boot_parameters_only_known_ones_stay(line: str, kept: str) -> None:
    assert allowed.keep_boot_parameters(line) == kept


@given(st.text())
def test_masking_a_command_line_twice_changes_nothing(line: str) -> None:
    once = allowed.keep_boot_parameters(line)
    assert allowed.keep_boot_parameters(once) == once
    assert parse.boot_parameters(once).keys() <= parse.boot_parameters(line).keys()


def test_the_builder_and_his_machine_are_left_out() -> None:
    text = "Linux version 6.1.0 (root@build-7.corp.example) (gcc (Debian 12) 12.2) #1 SMP"
    assert allowed.keep_builder_out(text) == "Linux version 6.1.0 (*) (gcc (Debian 12) 12.2) #1 SMP"


def test_of_the_mounts_only_kernel_file_systems_stay_and_no_names_of_containers() -> None:
    text = (
        "36 35 98:0 /docker/4f5a9c /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,favordynmods\n"
        "37 35 0:44 / /home/alice/mnt rw - nfs4 filer.corp.example:/alice rw,addr=10.0.0.7\n"
        "38 35 0:45 / /var/lib/alice/cg rw - cgroup cgroup rw,cpu,release_agent=/home/alice/x\n"
    )
    kept = allowed.keep_mounts(text)
    assert parse.mountinfo(kept) == (
        parse.Mount("/sys/fs/cgroup", "cgroup2", frozenset(("rw", "favordynmods"))),
        parse.Mount("/*", "cgroup", frozenset(("rw", "cpu"))),
    )
    assert not any(word in kept for word in ("alice", "docker", "corp", "10.0"))


def test_of_the_groups_only_kvm_stays_without_members() -> None:
    assert allowed.keep_kvm_group("root:x:0:\nkvm:x:106:alice,bob\nalice:x:1000:\n") == "kvm:x:106:\n"


def test_of_the_modules_known_names_stay_and_no_addresses() -> None:
    text = (
        "kvm_intel 421888 12 - Live 0xffffffffc0a00000\nmytool 1 0 - Live 0xffffffffc0b00000\n"
        "kvm 1 1 kvm_intel,mytool, Live 0xffffffffc0c00000\n"
    )
    kept = allowed.keep_modules(text)
    assert kept == "kvm_intel 0 12 - Live 0x0\nkvm 0 1 kvm_intel, Live 0x0\n"
    assert parse.module_users(kept) == {"kvm_intel": 12, "kvm": 1}


def test_of_the_configuration_what_decides_about_kvm_stays() -> None:
    text = 'CONFIG_HZ=250\n# CONFIG_KVM_XEN is not set\nCONFIG_DEFAULT_HOSTNAME="build-7"\nCONFIG_BUILD_SALT="x"\n'
    assert allowed.keep_config(text) == "CONFIG_HZ=250\n# CONFIG_KVM_XEN is not set\n"


def test_of_many_processors_one_is_kept_and_the_others_counted() -> None:
    text = "processor\t: 0\nmodel name\t: X\napicid\t: 9\nflags\t: fpu\n\nprocessor\t: 1\nflags\t: fpu\n"
    kept = allowed.keep_processors(text)
    assert "apicid" not in kept
    assert kept.count("flags") == 1
    assert parse.cpu(kept).processors == 2


@pytest.mark.parametrize("one", [one for one in allowed.ALLOWED if one.keep], ids=lambda one: one.pattern)
@given(text=st.text())
def test_every_reduction_takes_any_text_and_is_stable(one: allowed.Allowed, text: str) -> None:
    assert one.keep is not None
    kept = one.keep(text)
    assert one.keep(kept) == kept
