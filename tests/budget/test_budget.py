"""Exit budgets. What is expected of CR0.WP is Linux commit fb509f76acc8 (v6.4): from it on the guest owns the bit."""

from __future__ import annotations

import pytest

from worldswitch.budget.check import assert_exits, assert_no_exits
from worldswitch.budget.exits import Exits, exits_of
from worldswitch.errors import MissingError, NotTold, UnknownNameError, UsageError
from worldswitch.guest import library


def test_a_pass_of_cr0_wp_leaves_twice_before_the_guest_owned_it() -> None:
    found = exits_of("cr0-wp", kernel="5.10", cpu="intel", n=100)
    assert found.per_pass["CR_ACCESS"] == 2
    assert (found.on, found.cpu, found.n, found.unit) == ("model", "intel", 100, "pair")


def test_a_program_object_gives_what_its_name_gives() -> None:
    named = exits_of("cr4-smep", kernel="6.12", n=50)
    made = exits_of(library.program("cr4-smep"), kernel="6.12", n=50)
    assert named == made


def test_a_budget_that_holds_returns_what_was_seen() -> None:
    assert isinstance(assert_no_exits("cr0-wp", "CR_ACCESS", kernel="6.12"), Exits)
    assert assert_exits("cpuid", {"CPUID": 1}, kernel="6.12", n=10).per_pass["CPUID"] == 1


def test_a_budget_that_does_not_names_seen_allowed_the_rule_and_the_kernel_that_mends_it() -> None:
    with pytest.raises(AssertionError) as failed:
        assert_exits("cr0-wp", {"CR_ACCESS": 1}, kernel="5.10", cpu="intel")
    message = str(failed.value)
    assert "CR_ACCESS  seen 2, at most 1" in message
    assert "because of cr0-wp-owned" in message
    assert "fb509f76acc8" in message
    assert "rule cr0-guest-owned" in message


def test_where_no_kernel_mends_it_the_message_says_so() -> None:
    with pytest.raises(AssertionError, match="no newer kernel the model knows keeps this budget"):
        assert_no_exits("cr0-wp", kernel="6.12", cpu="amd")


def test_exits_of_all_reasons_are_budgeted_together() -> None:
    with pytest.raises(AssertionError, match=r"all  seen 1, at most 0\.5"):
        assert_exits("cpuid", {"all": 0.5}, kernel="6.12", n=10)


def test_bad_words_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="nearest: CR_ACCESS"):
        assert_no_exits("cr0-wp", "CRACCESS")
    with pytest.raises(UnknownNameError, match="intell"):
        exits_of("cr0-wp", cpu="intell")
    with pytest.raises(UnknownNameError, match="unknown machine"):
        exits_of("cr0-wp", on="kvn")
    with pytest.raises(UsageError, match="program of the host"):
        exits_of("create-vm")
    with pytest.raises(UsageError, match="0 or more"):
        assert_exits("cr0-wp", {"CPUID": -1})
    with pytest.raises(UsageError, match="1 or more"):
        exits_of("cr0-wp", n=0)


def test_exits_without_a_reason_leave_a_budget_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Exits("p", "pass", "kvm", None, None, None, 10, {"HLT": 1.0, "not told apart": 3.0}, 4.0)
    monkeypatch.setattr("worldswitch.budget.check.exits_of", lambda *_, **__: seen)
    with pytest.raises(NotTold, match="trace events tell reasons"):
        assert_exits("p", {"CPUID": 2}, on="kvm")
    assert_exits("p", {"CPUID": 3, "all": 4}, on="kvm")


@pytest.mark.needs("kvm")
def test_this_hosts_kvm_is_counted() -> None:
    """A port access leaves the guest once on every KVM: only userspace has the port."""
    found = assert_exits("io", {"all": 1}, on="kvm", n=20)
    assert (found.on, found.n, found.total) == ("kvm", 20, 1)


@pytest.mark.needs("kvm")
def test_this_hosts_kvm_breaks_a_budget() -> None:
    with pytest.raises(AssertionError, match=r"all +seen 1, at most 0"):
        assert_no_exits("io", on="kvm", n=20)


def test_a_kernel_that_is_not_fetched_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingError):
        exits_of("cpuid", on="lab", kernel="6.12")


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="the budget of CPUID is '1'"):
        assert_exits("cpuid", {"CPUID": "1"}, cpu="intel")  # type: ignore[dict-item]
