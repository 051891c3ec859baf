"""Facts per kernel. Expected presence: kvm source of the Debian packages named in facts.toml, stable changelogs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.kvm.facts import Version, diff, facts, kernel, lines, parse_version

# Presence in 5.10.223, 6.1.190, 6.12.117, 7.2.13 and 7.3-rc7, read in the source of each.
READ = ("5.10.223", "6.1.190", "6.12.117", "7.2.13", "7.3-rc7")
PRESENCE = {
    "nx-recovery-thread": "yyyyy",
    "cr0-wp-not-forced-with-ept": "yyyyy",
    "tdp-mmu": "yyyyy",
    "tdp-mmu-default": "nyyyy",
    "nx-recovery-period": "nyyyy",
    "binary-stats": "nyyyy",
    "tdp-root-role-constant": "nyyyy",
    "cgroup-favordynmods": "nyyyy",
    "nx-opt-out": "nyyyy",
    "cr0-wp-init-only": "nyyyy",
    "cr0-wp-ignored-without-paging": "nnyyy",
    "cr-single-bit-reads": "nyyyy",
    "cr0-wp-owned": "nyyyy",
    "cr0-wp-lazy-refresh": "nyyyy",
    "tdp-roots-kept": "nyyyy",
    "tdp-roots-zapped-in-place": "nyyyy",
    "nx-never": "nyyyy",
    "sregs-cr0-checked": "nyyyy",
    "tdp-roots-under-read-lock": "nnyyy",
    "cr0-cd-zaps": "yynnn",
    "nx-recovery-vhost-task": "nnyyy",
    "nx-recovery-lazy": "nnyyy",
    "nx-recovery-retry": "nnyyy",
    "trace-entry-intr-info": "nnnyy",
    "trace-exit-requests": "nnnyy",
    "trace-entry-immediate-exit": "nyyyy",
    "nx-recovery-two-lists": "nnnyy",
    "nx-recovery-read-lock": "nnnyy",
    "cet-virtualized": "nnnyy",
    "cr4-cet-owned": "nnnyy",
    "nested-cet-wp-consistency": "nnyyy",
    "nx-reads-auto": "nnnyy",
    "nx-recovery-spares-logged": "nnyyy",
    "nx-recovery-counts-amiss": "nnnyy",
    "kstrtobool-true-false": "nyyyy",
    "kstrtobool-enable-disable": "nnnyy",
    "nx-never-unless-affected": "nnnnn",
    "nx-recovery-when-needed": "nnnnn",
    "regs-c": "nnyyy",
    "mbec-gmet": "nnnyy",
    "pagewalk-split": "nnnny",
    "stats-exits-misplaced": "ynnnn",
    "cr4-pge-flush-only": "nyyyy",
    "cr4-fsgsbase-owned": "yyyyy",
    "cr4-la57-owned": "nnnnn",
    "cr4-tsd-owned": "yyyyy",
    "svm-pge-extra-flush": "yyynn",
    "cgroup-cpuset-rwsem": "nnnnn",
    "virt-at-load": "nnyyy",
}


@pytest.mark.parametrize("fact", PRESENCE)
def test_facts_hold_in_the_kernels_whose_source_was_read(fact: str) -> None:
    assert "".join("y" if kernel(version).has(fact) else "n" for version in READ) == PRESENCE[fact]


# The last version without it and the first one with it, from the stable changelogs.
FIRST = [
    ("cr0-wp-owned", "6.1.28", "6.1.29"),
    ("cr0-wp-init-only", "6.3.2", "6.3.3"),
    ("cr0-wp-owned", "6.2.15", "6.2.16"),
    ("tdp-roots-kept", "6.1.49", "6.1.50"),
    ("nx-never", "6.1.52", "6.1.53"),
    ("sregs-cr0-checked", "6.1.42", "6.1.43"),
    ("tdp-roots-zapped-in-place", "6.1.59", "6.1.60"),
    ("trace-entry-immediate-exit", "6.1.148", "6.1.149"),
    ("nx-recovery-lazy", "6.12.13", "6.12.14"),
    ("nx-recovery-retry", "6.12.43", "6.12.44"),
    ("nested-cet-wp-consistency", "6.12.77", "6.12.78"),
    ("stats-exits-misplaced", "5.10.182", "5.10.183"),
    ("cr0-wp-owned", "6.3.0", "6.4.0"),
    ("cr4-cet-owned", "6.17.0", "6.18.0"),
]


@pytest.mark.parametrize(("fact", "without", "with_it"), FIRST)
def test_facts_begin_with_the_version_of_the_changelog(fact: str, without: str, with_it: str) -> None:
    assert not kernel(without).has(fact)
    assert kernel(with_it).has(fact)


def test_the_tdp_mmu_default_was_taken_back_in_5_15_129() -> None:
    assert kernel("5.15.128").has("tdp-mmu-default")
    assert not kernel("5.15.129").has("tdp-mmu-default")
    assert kernel("5.16.0").has("tdp-mmu-default")


def test_5_15_never_got_the_wp_series() -> None:
    """Message-ID ZF1a8xIGLwcdJDVZ@google.com: refused, since 5.15 lacks the constant TDP role."""
    assert not kernel("5.15").facts & {"cr0-wp-owned", "cr0-wp-init-only", "tdp-root-role-constant"}


def test_every_line_asked_for_is_there() -> None:
    assert list(lines()) == ["5.4", "5.10", "5.15", "6.1", "6.2", "6.4", "6.6", "6.12", "6.18", "7.2", "7.3"]


@pytest.mark.parametrize("fact", list(facts().values()), ids=lambda fact: fact.id)
def test_every_fact_says_where_it_was_read_and_what_is_not_confirmed(fact) -> None:  # type: ignore[no-untyped-def]
    assert fact.source
    assert fact.verified == (not fact.why)
    assert fact.commit == "" or re.fullmatch(r"[0-9a-f]{12}", fact.commit)
    # What came with no release and held at no beginning is only a proposal, and a proposal is nothing else.
    assert fact.proposed != bool(fact.since or fact.default or fact.backports)
    shape = r'Since Linux (commit [0-9a-f]{12} )?(\(".+"\) )?\(v\d+\.\d+\), .+\. Before that, .+\.'
    assert re.fullmatch(shape if fact.since else r".+\. Without that, .+\.", fact.statement)
    for line, first in (fact.backports | fact.removed).items():
        assert first.startswith(f"{line}.")


def test_what_was_only_proposed_is_in_no_kernel_and_verified_nowhere() -> None:
    proposed = {fact.id for fact in facts().values() if fact.proposed}
    assert proposed == {"nx-never-unless-affected", "nx-recovery-when-needed"}
    for id in proposed:
        assert not facts()[id].verified
        assert not any(kernel(line).has(id) for line in lines())
        assert kernel(f"6.12+{id}").has(id)


def test_x_y_means_the_newest_of_the_line_and_x_y_0_the_release() -> None:
    assert str(kernel("6.1")) == lines()["6.1"]
    assert str(kernel("6.1.0")) == "6.1.0"
    assert kernel("6.1").has("cr0-wp-owned")
    assert not kernel("6.1.0").has("cr0-wp-owned")
    assert kernel("7.3").version == Version(7, 3, 0, 7)


def test_facts_are_added_and_taken_away() -> None:
    changed = kernel("6.2.0+cr0-wp-owned-tdp-mmu-default")
    assert str(changed) == "6.2.0+cr0-wp-owned-tdp-mmu-default"
    assert {f.fact.id: f.gained for f in diff(kernel("6.2.0"), changed)} == {
        "cr0-wp-owned": True,
        "tdp-mmu-default": False,
    }
    assert changed.origins["cr0-wp-owned"] == "added by +cr0-wp-owned"


@pytest.mark.parametrize(
    ("spec", "error", "complaint"),
    [
        ("6.9", UnknownNameError, r"nearest: 6.6.*Mainline is 6.9.0"),
        ("4.19.1", UnknownNameError, "The facts reach from 5.4 to 7.3"),
        ("7.4", UnknownNameError, "The facts reach from 5.4 to 7.3"),
        ("six", UnknownNameError, "Write a version, such as 6.1"),
        ("", UnknownNameError, "Write a version"),
        ("6.1.x", UnknownNameError, "Write a version"),
        ("6.2.0+cr0-wp-owend", UnknownNameError, "nearest: cr0-wp-owned"),
        ("6.2.0+", UnknownNameError, "unknown fact ''"),
        ("6.2.0 cr0", UsageError, "after the version comes"),
        ("6.12+cr0-wp-owned", UsageError, r"changes nothing: 6.12.117 has cr0-wp-owned already \(mainline 6.4\)"),
        ("6.2.0-cr0-wp-owned", UsageError, "lacks cr0-wp-owned already"),
    ],
)
def test_what_is_no_kernel_is_refused(spec: str, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        kernel(spec)


def test_asking_for_a_fact_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="nearest: tdp-mmu"):
        kernel("6.1").has("tdp-mu")


def test_what_is_newer_than_what_was_read_says_so() -> None:
    assert kernel("6.1.999").notes == (f"newer than {lines()['6.1']}, the newest 6.1 that was read for backports",)
    assert "not in the facts" in kernel("6.9.5").notes[0]
    assert kernel("6.1.29").notes == ()


def test_diff_of_a_kernel_with_itself_is_empty() -> None:
    assert diff(kernel("6.1"), kernel("6.1")) == ()


@given(st.text(alphabet="0123456789.+-rcv abtdpmmu", max_size=30))
def test_any_text_is_a_kernel_or_refused(text: str) -> None:
    try:
        found = kernel(text)
    except UsageError:
        return
    assert kernel(str(found)).facts == found.facts


@given(st.integers(5, 7), st.integers(0, 30), st.integers(0, 400))
def test_versions_print_as_they_are_read(major: int, minor: int, patch: int) -> None:
    assert str(parse_version(f"{major}.{minor}.{patch}")) == f"{major}.{minor}.{patch}"


@pytest.mark.parametrize("text", ["", "6", "6.1.2.3", "6.1-rc", "x6.1", "6.1\n7", "6.1.99999999999"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a kernel version"):
        parse_version(text)
