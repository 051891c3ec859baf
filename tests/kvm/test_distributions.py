"""Distribution kernels. Expected: Debian's changelogs and archive; strings as the distributions' kernels print them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import NotTold, UnknownNameError, UsageError
from worldswitch.kvm.distributions import kernel_named, kernel_of
from worldswitch.kvm.facts import debian_names, parse_version

TOLD = {
    "Linux (none) 5.10.0-32-cloud-amd64 #1 SMP Debian 5.10.223-1 (2024-08-10) x86_64 GNU/Linux": "5.10.223",
    "Linux version 6.1.0-37-amd64 (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1": "6.1.140",
    "6.12.117+deb13-cloud-amd64": "6.12.117",
    "7.2.13+deb14-cloud-amd64": "7.2.13",
    "7.3-rc7+deb14-cloud-amd64": "7.3-rc7",
    "6.1.190": "6.1.190",
    "6.1.0": "6.1.0",
    "6.16.0-rc5+": "6.16-rc5",
    "5.10.0-32-cloud-amd64": "5.10.223",
    "6.1.0-54-cloud-amd64": "6.1.190",
    "6.1.0-47-cloud-amd64": "6.1.170",
    "5.10.0-46-cloud-amd64": "5.10.262",
    "Ubuntu 5.15.0-91.101-generic 5.15.131": "5.15.131",
    "6.11.4-301.fc41.x86_64": "6.11.4",
    "6.9.3-arch1-1": "6.9.3",
    "6.1.52-mine": "6.1.52",
}

NOT_TOLD = {
    "5.15.0-91-generic": "Ubuntu",
    "5.14.0-362.el9": "Red Hat",
    "5.14.0-362.8.1.el9_3.x86_64": "Red Hat",
    "6.2.16-3-pve": "Proxmox",
    "5.3.18-150300.59-default": "SUSE",
    "5.10.0-99-amd64": "5.10.0-99 is not in the table",
    "6.1.0-0.deb11.7-amd64": "not in the table",
    "6.1.0-mine": "unknown suffix",
    "6.1": "names a line of kernels",
    "hello": "no kernel version",
    "": "no kernel version",
}


@pytest.mark.parametrize("text", TOLD)
def test_what_names_the_upstream_version_is_told(text: str) -> None:
    told = kernel_of(text)
    assert told.version == TOLD[text]
    assert told.how
    assert not told.why


@pytest.mark.parametrize("text", NOT_TOLD)
def test_what_does_not_is_never_guessed(text: str) -> None:
    told = kernel_of(text)
    assert told.version is None
    assert NOT_TOLD[text] in told.why
    with pytest.raises(NotTold, match="--from"):
        told.kernel()


def test_a_debian_name_of_two_versions_that_are_alike_is_the_last_of_them() -> None:
    told = kernel_of("6.1.0-10-amd64")
    assert told.version == "6.1.38"
    assert "6.1.37 to 6.1.38" in told.how


def test_the_debian_table_rises() -> None:
    for base in ("5.10.0", "6.1.0"):
        names = debian_names()[base]
        newest = [parse_version(v if isinstance(v, str) else v[1]) for v in names.values()]
        assert newest == sorted(newest)
        assert list(names) == [str(n) for n in range(int(next(iter(names))), int(list(names)[-1]) + 1)]


@pytest.mark.parametrize(
    ("text", "version", "told"),
    [
        ("6.1", "6.1.192", False),
        ("6.2.0+cr0-wp-owned", "6.2.0+cr0-wp-owned", False),
        ("6.1.0-54-cloud-amd64", "6.1.190", True),
        ("6.12.117+deb13-amd64", "6.12.117", True),
    ],
)
def test_a_kernel_is_named_either_way(text: str, version: str, told: bool) -> None:
    found, how = kernel_named(text)
    assert str(found) == version
    assert bool(how) == told


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        ("6.1+tdp-mm", UnknownNameError, "nearest: tdp-mmu"),
        ("5.15.0-91-generic", NotTold, "Ubuntu"),
        ("6.2.0+cr0-wp-owend", UnknownNameError, "unknown fact"),
        ("six", UnknownNameError, "unknown kernel"),
    ],
)
def test_what_names_none_says_why(text: str, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        kernel_named(text)


@given(
    st.one_of(st.text(max_size=60), st.from_regex(r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}[-+.~a-z0-9]{0,20}", fullmatch=True))
)
def test_any_text_is_told_or_has_a_reason(text: str) -> None:
    told = kernel_of(text)
    assert (told.version is None) == bool(told.why)
    with contextlib.suppress(NotTold, UsageError):
        kernel_named(text)
