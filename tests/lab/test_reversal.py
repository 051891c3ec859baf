"""Changes are taken out where they are, once, or not at all."""

from __future__ import annotations

import pytest

from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.kvm import facts
from worldswitch.lab import cache, reversal

# Not the kernel's code: just the names that a description looks for, laid out in ways C allows.
MACROS = """\
#define KVM_POSSIBLE_CR0_GUEST_BITS	(X86_CR0_TS | X86_CR0_WP)
#define KVM_POSSIBLE_CR4_GUEST_BITS \\
	(X86_CR4_CET | X86_CR4_DE \\
	| X86_CR4_TSD | X86_CR4_FSGSBASE)
"""
FUNCTION = """\
void kvm_post_set_cr0(int cr0)
{
	prepare(cr0);
	if (changed(cr0)) {
		if (tdp_enabled) {
			kvm_init_mmu(cr0);
			return;
		}
	}
	if (tdp_enabled && cr0)
		something_else(cr0);
	finish(cr0);
}
void another(void)
{
	if (tdp_enabled)
		kvm_init_mmu(1);
	BUILD_BUG_ON((A & KVM_POSSIBLE_CR0_GUEST_BITS) != X86_CR0_WP);
}
"""


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "arch/x86/kvm"
    folder.mkdir(parents=True)
    (tmp_path / "virt/kvm").mkdir(parents=True)
    (folder / "regs.h").write_text(MACROS)
    (folder / "x86.c").write_text(FUNCTION)
    return tmp_path


def test_every_description_is_of_a_fact_and_names_its_commit():
    for name, described in reversal.reversals().items():
        assert facts.facts()[name].commit == described.commit
        assert described.edits


def test_the_reverts_of_march_2023_and_of_cet_are_described():
    """fb509f76acc8 and 01b31714bd90 are the two patches of the March 2023 series, d292035fb5d2 is CR4.CET's."""
    commits = {"fb509f76acc8": "cr0-wp-owned", "01b31714bd90": "cr0-wp-init-only", "d292035fb5d2": "cr4-cet-owned"}
    for commit, fact in commits.items():
        assert reversal.named(commit).fact == reversal.named(fact).fact == fact
        assert reversal.named(commit + "0" * 28).fact == fact
        assert reversal.named(commit[:7]).fact == fact


def test_a_name_is_taken_out_of_a_macro_with_its_bar(tree):
    done = reversal.take_out(reversal.named("cr0-wp-owned"), tree)
    assert done == [
        "arch/x86/kvm/regs.h:1: X86_CR0_WP in the definition of KVM_POSSIBLE_CR0_GUEST_BITS",
        "arch/x86/kvm/x86.c:18: BUILD_BUG_ON() on KVM_POSSIBLE_CR0_GUEST_BITS and X86_CR0_WP",
    ]
    assert (tree / "arch/x86/kvm/regs.h").read_text() == MACROS.replace(" | X86_CR0_WP", "")
    assert "BUILD_BUG_ON" not in (tree / "arch/x86/kvm/x86.c").read_text()


@pytest.mark.parametrize(
    ("fact", "left"),
    [
        ("cr4-cet-owned", {"X86_CR4_DE", "X86_CR4_TSD", "X86_CR4_FSGSBASE"}),
        ("cr4-tsd-owned", {"X86_CR4_CET", "X86_CR4_DE", "X86_CR4_FSGSBASE"}),
        ("cr4-fsgsbase-owned", {"X86_CR4_CET", "X86_CR4_DE", "X86_CR4_TSD"}),
    ],
)
def test_the_first_the_middle_and_the_last_of_a_macro(tree, fact, left):
    import re

    reversal.take_out(reversal.named(fact), tree)
    text = (tree / "arch/x86/kvm/regs.h").read_text()
    value = "".join(text.split("KVM_POSSIBLE_CR4_GUEST_BITS")[1].replace("\\\n", " ").split())
    assert re.fullmatch(r"\((\w+)(\|\w+)*\)", value)
    assert set(re.findall(r"\w+", value)) == left
    assert text.count("\n") == MACROS.count("\n")


def test_the_innermost_if_of_the_right_function_is_taken_out(tree):
    reversal.take_out(reversal.named("cr0-wp-init-only"), tree)
    text = (tree / "arch/x86/kvm/x86.c").read_text()
    assert text.count("kvm_init_mmu") == 1 and "something_else(cr0);" in text and "if (changed(cr0)) {" in text
    assert text.count("\n") == FUNCTION.count("\n")


def test_a_file_is_replaced_not_written_into(tree):
    """Build roots share their files by hard links."""
    shared = tree / "shared.h"
    shared.hardlink_to(tree / "arch/x86/kvm/regs.h")
    reversal.take_out(reversal.named("cr0-wp-owned"), tree)
    assert shared.read_text() == MACROS


def test_what_is_not_there_is_an_error_and_nothing_changes(tree):
    reversal.take_out(reversal.named("cr0-wp-owned"), tree)
    before = (tree / "arch/x86/kvm/regs.h").read_text()
    with pytest.raises(MissingError, match=r"cannot take out cr0-wp-owned .*X86_CR0_WP in .* not at all, not once"):
        reversal.take_out(reversal.named("cr0-wp-owned"), tree)
    assert (tree / "arch/x86/kvm/regs.h").read_text() == before


def test_what_is_there_twice_is_an_error_and_nothing_changes(tree):
    (tree / "virt/kvm/more.h").write_text(MACROS)
    with pytest.raises(MissingError, match="2 times, not once; give the change as --patch FILE"):
        reversal.take_out(reversal.named("cr4-cet-owned"), tree)
    assert (tree / "virt/kvm/more.h").read_text() == MACROS


def test_names_nobody_knows():
    assert reversal.named("0123456789ab") is None
    with pytest.raises(UsageError, match=r"how to take tdp-mmu out is not described; described are .*--patch FILE"):
        reversal.named("tdp-mmu")
    with pytest.raises(UnknownNameError, match="nearest: cr0-wp-owned"):
        reversal.named("cr0-wp-own")


def test_a_fact_the_kernel_does_not_have_cannot_be_taken_out():
    assert reversal.reason_not("cr0-wp-owned", "6.1.176") is None
    assert reversal.reason_not("cr0-wp-owned", "6.1.28").startswith("6.1.28 does not have cr0-wp-owned")
    assert reversal.reason_not("cr4-cet-owned", "6.12.117").startswith("6.12.117 does not have")
    assert reversal.reason_not("cr0-wp-owned", "99.1") is None


@pytest.mark.needs("buildroot")
def test_every_description_fits_the_real_sources_of_kernels_that_have_the_fact(tmp_path):
    import shutil

    tried = 0
    for entry in cache.entries("buildroots"):
        version = entry.about["what"].rpartition(" ")[2]
        for name, described in reversal.reversals().items():
            if reversal.reason_not(name, version):
                continue
            tree = tmp_path / f"{version}-{name}"
            for part in ("arch/x86/kvm", "virt/kvm"):
                shutil.copytree(entry.path / entry.about["tree"] / part, tree / part)
            assert reversal.take_out(described, tree), (version, name)
            tried += 1
    assert tried
