"""The texts of /proc and /sys; examples are of real machines, and any text at all is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.host import parse

PARSERS: tuple[Callable[[str], object], ...] = (
    parse.cpu, parse.mountinfo, parse.mounts, parse.boot_parameters, parse.config, parse.meminfo, parse.module_users,
    parse.os_release, parse.chosen, parse.switch, parse.cpu_list, parse.number,
)  # fmt: skip


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@given(text=st.text() | st.text(" =:\n-,[]\"'#kB0123456789CONFIG_y\t", max_size=80))
def test_any_text_is_taken(parser: Callable[[str], object], text: str) -> None:
    parser(text)


WORD = st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True)
PLACE = st.text(st.characters(exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(PLACE, WORD, st.frozensets(WORD, min_size=1))))
def test_mounts_are_read_as_the_kernel_writes_them(found: list[tuple[str, str, frozenset[str]]]) -> None:
    # show_mountinfo and show_vfsmnt escape blank, tab, newline and backslash as octal (fs/proc_namespace.c).
    lines = []
    for place, fstype, options in found:
        path = "".join(f"\\{ord(c):03o}" if c in " \t\\#" else c for c in f"/{place}")
        lines.append(f"36 35 98:0 / {path} rw,noatime shared:1 master:2 - {fstype} none {','.join(options)}\n")
    expected = tuple(parse.Mount(f"/{place}", fstype, options) for place, fstype, options in found)
    assert parse.mountinfo("".join(lines)) == expected


@given(st.dictionaries(WORD, st.text("abc,=.-", min_size=1)))
def test_boot_parameters_are_read(found: dict[str, str]) -> None:
    line = " ".join(f"{name}={value}" for name, value in found.items())
    assert parse.boot_parameters(line) == {name: (value,) for name, value in found.items()}


def test_a_boot_parameter_said_twice_has_both_values() -> None:
    text = "hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=512 quiet kvm-intel.ept=0"
    assert parse.boot_parameters(text) == {
        "hugepagesz": ("1G", "2M"), "hugepages": ("4", "512"), "quiet": ("",), "kvm_intel.ept": ("0",),
    }  # fmt: skip


def test_a_processor_of_amd_is_read() -> None:
    text = (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
        "stepping\t: 1\nmicrocode\t: 0x1000065\nflags\t\t: fpu svm npt\nbugs\t\t: spectre_v1 srso\n\nprocessor\t: 1\n"
    )
    found = parse.cpu(text)
    assert (found.vendor, found.family, found.model, found.stepping, found.processors) == ("amd", 25, 1, 1, 2)
    assert (found.flags, found.bugs) == ({"fpu", "svm", "npt"}, {"spectre_v1", "srso"})


def test_the_configuration_tells_off_from_unknown() -> None:
    text = 'CONFIG_HZ=250\nCONFIG_KVM=m\n# CONFIG_KVM_XEN is not set\nCONFIG_LOCALVERSION="-x"\n#\n# Bus\n'
    assert parse.config(text) == {
        "CONFIG_HZ": "250", "CONFIG_KVM": "m", "CONFIG_KVM_XEN": "n", "CONFIG_LOCALVERSION": "-x",
    }  # fmt: skip


def test_memory_is_in_bytes_and_counts_are_counts() -> None:
    text = "MemTotal:       24684096 kB\nHugePages_Total:       8\nHugepagesize:       2048 kB\n"
    assert parse.meminfo(text) == {"MemTotal": 24684096 << 10, "HugePages_Total": 8, "Hugepagesize": 2 << 20}


@pytest.mark.parametrize(
    ("text", "value"), [("always [madvise] never\n", "madvise"), ("none\n", "none"), (None, None), ("[]", "")]
)
def test_the_chosen_value(text: str | None, value: str | None) -> None:
    assert parse.chosen(text) == value


@pytest.mark.parametrize(("text", "count"), [("0-3,8\n", 5), ("0\n", 1), ("", 0), ("3-1", 0), ("x", 0), (None, 0)])
def test_a_list_of_processors(text: str | None, count: int) -> None:
    assert parse.cpu_list(text) == count


def test_os_release_is_unquoted() -> None:
    assert parse.os_release('ID=debian\nPRETTY_NAME="Debian \\"12\\""\nBAD-NAME=x\nA="') == {
        "ID": "debian", "PRETTY_NAME": 'Debian "12"', "A": '"',
    }  # fmt: skip
