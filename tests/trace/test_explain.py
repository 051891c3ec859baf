"""Sentences and orders that the what-if is made of."""

from __future__ import annotations

import pytest

from worldswitch.kvm.control_registers import change
from worldswitch.kvm.policy import Policy
from worldswitch.trace import explain
from worldswitch.trace.explain import Loss
from worldswitch.x86.registers import CR0, CR4, bit_mask

WP = bit_mask(CR0, "WP")


@pytest.mark.parametrize(("n", "text"), [(0, "0 exits"), (1, "1 exit"), (2, "2 exits"), (3000, "3,000 exits")])
def test_one_and_many(n: int, text: str) -> None:
    assert explain.many(n, "exit") == text


@pytest.mark.parametrize(
    ("kernel", "cpu", "mmu", "loss"),
    [
        ("5.10", "amd", "tdp", Loss.ALWAYS),
        ("5.10", "amd", "legacy", Loss.ONCE),
        ("6.1.0", "amd", "tdp", Loss.ALWAYS),
        ("6.1.0", "amd", "legacy", Loss.NEVER),
        ("6.12", "amd", "tdp", Loss.NEVER),
        ("6.12", "intel", "tdp", Loss.NEVER),
        ("6.12", "intel", "shadow", Loss.ONCE),
    ],
)
def test_how_wp_toggles_lose_page_tables(kernel: str, cpu: str, mmu: str, loss: Loss) -> None:
    """The facts behind the timings of <ZSXdYcMUds-DrHAd@google.com>: the TDP MMU freed its tree, the others did not."""
    assert explain.loss_of(change(Policy.of(kernel, cpu, mmu), CR0, WP)) is loss


def test_work_is_ordered_by_what_it_costs() -> None:
    """Seconds of one benchmark, AMD and Intel (mails of March and April 2023): 5.10 TDP > 6.1.0 legacy > 6.12."""
    dear = [
        explain.dearness(change(Policy.of(kernel, "amd", mmu), CR0, WP))
        for kernel, mmu in (("5.10", "tdp"), ("6.1.0", "legacy"), ("6.12", "tdp"))
    ]
    assert dear == sorted(dear, reverse=True)
    assert len(set(dear)) == 3


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (("5.10", "intel", "tdp"), ("6.12", "intel", "tdp"), "5.10.262"),
        (("5.10", "intel", "tdp"), ("5.10", "intel", "legacy"), "5.10.262 with the TDP MMU"),
        (("5.10", "intel", "shadow"), ("6.12", "intel", "tdp"), "5.10.262 with shadow paging"),
        (("6.12", "intel", "tdp"), ("5.10", "intel", "shadow"), "6.12.117 with EPT"),
        (("6.12", "amd", "tdp"), ("6.12", "amd", "shadow"), "6.12.117 with nested paging"),
    ],
)
def test_hosts_are_named_by_what_tells_them_apart(one: tuple[str, ...], other: tuple[str, ...], name: str) -> None:
    assert explain.name_of(Policy.of(*one), Policy.of(*other)) == name


def test_bits_are_named_with_their_register() -> None:
    assert explain.bits_of(CR4, bit_mask(CR4, "SMEP", "SMAP")) == "CR4.SMEP+SMAP"


def test_settings_no_exit_shows() -> None:
    policy = Policy.of("6.12", settings=["nx_huge_pages=never", "favordynmods=1", "tdp_mmu=0"])
    told = explain.untraceable(policy)
    assert len(told) == 2
    assert all(text.startswith(("what kvm.nx_huge_pages=never", "what favordynmods=1")) for text in told)
