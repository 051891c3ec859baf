"""Findings in words: held to what the recordings' own notes and other tools say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guest_build import CR_ACCESS, HLT, VMX, Guest
from worldswitch.report.build import report
from worldswitch.report.study import Question, newest

DATA = Path(__file__).parents[1] / "data"
TDPMMU = DATA / "svm-5.10-npt-tdpmmu"


def findings(*paths: Path, to: tuple[str, ...] = ()):
    return report([str(path) for path in paths], Question(to)).findings


def perf_counts(folder: Path) -> dict[str, int]:
    """Exit name -> count, as perf kvm stat report printed them when the recording was made."""
    text = (folder / "kvmstat.txt").read_text()
    return {name: int(count) for name, count in re.findall(r"^\s*(\S+)\s+(\d+)\s+\d+\.\d+%", text, re.MULTILINE)}


def test_the_root_churn_of_the_tdp_mmu_of_5_10_is_the_first_finding() -> None:
    counts = perf_counts(TDPMMU)
    assert counts["npf"] == 804
    assert counts["cr0_sel_write"] == 200
    first = findings(TDPMMU / "kvmstat.perf.data.zst", to=("6.12",))[0]
    assert first.level == "cost"
    assert "root-churn" in first.ids
    assert "200 writes of CR0.WP" in first.headline
    assert "throws its page tables away" in first.headline
    told = " ".join((first.headline, first.gloss, *first.why, *first.remedy, *(step.text for step in first.steps)))
    assert f"of the trace's {counts['npf']} page faults" in told
    assert "write protection" in told  # what WP is
    assert "6.12.117 keeps its MMU roots" in told
    assert "200 of 200 unloads freed the tables" in [step.number for step in first.steps]


def test_what_stays_is_said_too() -> None:
    first = findings(TDPMMU / "wp.trace.dat", to=("6.12",))[0]
    assert any("What stays: the 200 writes of CR0.WP themselves" in text for text in first.remedy)
    assert any("Inferred" in text and "tdp_mmu=1" in text for text in first.rests_on)


def test_the_bars_are_the_time_recorded_and_the_time_left() -> None:
    first = findings(TDPMMU / "wp.trace.dat", to=("6.12",))[0]
    here, there = (sum(amount for _, _, amount in bar.segments) for bar in first.bars)
    (left,) = (number for number, what in first.numbers if "time outside the guest" in what)
    assert left == f"{100 * (1 - there / here):.0f} %"


def test_writes_that_another_kernel_lets_the_guest_own_are_told_as_such() -> None:
    folder = DATA / "vmx-5.10-ept"
    first = findings(folder / "wp.trace.dat", to=("6.12",))[0]
    assert first.headline.startswith("300 writes of CR0.WP left the guest")
    assert any("lets the guest own CR0.WP" in text for text in first.remedy)


def test_a_reason_is_not_told_twice() -> None:
    reasons = [one.headline for one in findings(TDPMMU / "wp.trace.dat")]
    assert not [headline for headline in reasons if "goes to" in headline]


def test_idling_is_no_cost(tmp_path: Path) -> None:
    guest = Guest(VMX, kernel="6.12.0")
    for _ in range(9):
        guest.exit(HLT, ns=1_000_000)
    guest.exit(CR_ACCESS, ns=5_000)
    guest.trace().save(tmp_path / "idle")
    found = findings(tmp_path / "idle")
    costs = [one.headline for one in found if one.level == "cost"]
    assert costs == ["100 % of the time outside the guest goes to CR_ACCESS (idling aside)."]
    well = next(one.headline for one in found if one.level == "ok")
    assert well.startswith("100 % of the time outside the guest is idling")


def test_a_trace_that_names_no_kernel_says_what_to_do(tmp_path: Path) -> None:
    Guest(VMX).exit(CR_ACCESS).trace().save(tmp_path / "unnamed")
    part = report([str(tmp_path / "unnamed")]).parts[0]
    (whatif,) = (section for section in part.sections if section.title == "What if?")
    assert not whatif.figures
    assert "--from" in whatif.notes[0]


def test_lost_events_are_a_warning(tmp_path: Path) -> None:
    trace = Guest(VMX, kernel="6.12.0").exit(CR_ACCESS).trace()
    trace.meta.lost = 12
    trace.save(tmp_path / "lossy")
    found = findings(tmp_path / "lossy")
    assert found[0].level == "warning"
    assert found[0].ids == ("lost-events",)


def test_the_newest_kernel_is_a_released_one() -> None:
    from worldswitch.kvm.facts import lines

    assert "-rc" not in lines()[newest()]


def test_every_detector_s_finding_names_it() -> None:
    from worldswitch.trace.detect import DETECTORS

    found = findings(DATA / "create-vm" / "firecracker-2129.txt")
    assert {name for one in found for name in one.ids} <= {*DETECTORS, "whatif"}
    assert any("slow-start" in one.ids for one in found)


@pytest.mark.parametrize("text", ["..", "?."])
def test_no_sentence_ends_twice(text: str) -> None:
    for one in findings(TDPMMU / "wp.trace.dat", DATA / "create-vm" / "firecracker-2129.txt"):
        for sentence in (one.headline, one.gloss, *one.why, *one.remedy, *one.rests_on):
            assert not sentence.endswith(text)


def test_what_cannot_be_told_is_not_called_the_same() -> None:
    # perf kvm stat records no kvm_cr, so which bits the 300 writes changed is not in the file.
    headlines = [one.headline for one in findings(DATA / "vmx-5.10-ept" / "kvmstat.perf.data", to=("6.12",))]
    assert "Whether Linux 6.12.117 would save 300 exits of 308 cannot be told from this trace." in headlines


def test_a_small_saving_does_not_hide_what_costs_most() -> None:
    headlines = [one.headline for one in findings(DATA / "svm-5.10-npt" / "wp.perf.data.zst", to=("6.12",))]
    assert "goes to cr0_sel_write" in headlines[0]
    assert any(headline.startswith("After 2,000 writes of CR0.WP") for headline in headlines[1:])
