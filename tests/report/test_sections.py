"""Parts of a report, held to the documents they are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from report_inputs import DATA, DOCS, doctor, mixed, result
from worldswitch.record.result import Cell, Provenance, Result, Spread
from worldswitch.record.resultfile import save
from worldswitch.report.build import report
from worldswitch.report.document import Figure, Part, to_json
from worldswitch.report.study import Question

TDPMMU = DATA / "svm-5.10-npt-tdpmmu" / "wp.trace.dat"


def part(path: Path, **question: Any) -> Part:
    return report([str(path)], Question(**question)).parts[0]


def figure(of: Part, title: str) -> Figure:
    return next(one for section in of.sections for one in section.figures if one.title.startswith(title))


def column(of: Figure, name: str) -> list[Any]:
    assert of.table is not None
    place = [one.name for one in of.table.columns].index(name)
    return [row[place] for row in of.table.rows]


def test_exits_by_reason_are_those_of_perf_kvm_stat() -> None:
    # kvmstat.txt of the recording: npf 804, cr0_sel_write 200.
    by_reason = figure(part(TDPMMU.with_name("kvmstat.perf.data.zst")), "Time by reason")
    counts = dict(zip(column(by_reason, "reason"), column(by_reason, "exits"), strict=True))
    text = TDPMMU.with_name("kvmstat.txt").read_text()
    for name in ("npf", "cr0_sel_write"):
        assert f"{name} " in text
        assert f" {counts[name]} " in text


@pytest.mark.parametrize("name", ["svm-5.10-npt-tdpmmu/wp.trace.dat", "vmx-5.10-ept/wp.trace.dat"])
def test_timeline_distribution_and_account_hold_the_same_exits(name: str) -> None:
    one = part(DATA / name)
    timeline, reasons, durations = (figure(one, title) for title in ("Exits over", "Time by", "How long"))
    assert timeline.data is not None
    flat = [numbers for lane in timeline.data["lanes"] for numbers in lane["series"]]
    total = sum(column(reasons, "exits"))
    assert sum(sum(numbers[1::3]) for numbers in flat) == total == sum(column(durations, "exits"))
    assert sum(sum(numbers[2::3]) for numbers in flat) == sum(column(reasons, "time"))


def test_many_vcpus_share_the_last_lane(tmp_path: Path) -> None:
    from guest_build import CR_ACCESS, VMX, Guest

    guest = Guest(VMX, kernel="6.12.0")
    for tid in range(1, 31):
        guest.exit(CR_ACCESS, tid=tid, ns=1000 * tid)
    guest.trace().save(tmp_path / "many")
    timeline = figure(part(tmp_path / "many"), "Exits over")
    assert timeline.data is not None
    names = [lane["name"] for lane in timeline.data["lanes"]]
    assert names[-1] == "18 more vCPUs"
    assert len(names) == 13
    assert "18 more share the last one" in timeline.lead
    assert sum(sum(numbers[1::3]) for lane in timeline.data["lanes"] for numbers in lane["series"]) == 30


def test_the_bin_width_and_the_count_are_said() -> None:
    timeline = figure(part(TDPMMU), "Exits over")
    assert timeline.data is not None
    assert f"{timeline.data['bins']:,} bins" in timeline.lead
    assert f"{timeline.data['width']:,} ns" in timeline.origin.method


def test_each_kernel_asked_about_has_its_waterfall() -> None:
    one = part(TDPMMU, to=("6.1", "6.12"))
    (whatif,) = (section for section in one.sections if section.title == "What if?")
    assert [each.title for each in whatif.figures] == ["From 5.10.223 to 6.1.192", "From 5.10.223 to 6.12.117"]
    assert [each.origin.command.split(" --to ")[1] for each in whatif.figures] == ["6.1.192", "6.12.117"]


def test_results_of_several_kernels_stand_beside_each_other(tmp_path: Path) -> None:
    one = part(result(tmp_path / "a.json"))
    exits = figure(one, "cr0-wp: exits")
    assert column(exits, "kernel") == ["5.10.262", "6.12.117"]
    assert column(exits, "exits") == [2.0, 0.0]
    assert "cr0-wp: 2 exits for each pair on 5.10.262, 0 on 6.12.117." in [each.headline for each in one.findings]


def test_the_latencies_of_create_vm_are_all_there(tmp_path: Path) -> None:
    one = part(result(tmp_path / "a.json"))
    assert column(figure(one, "The calls"), "took") == [188_000, 190_000, 250_000, 3_190_000]
    spread = figure(one, "How long KVM_CREATE_VM")
    assert [column(spread, name) for name in ("calls", "p50", "max")] == [[4], [190_000], [3_190_000]]


def test_a_fix_is_there_to_copy(tmp_path: Path) -> None:
    one = part(doctor(tmp_path / "a.json", command="echo 'x y'"))
    (advice,) = one.sections[0].advice
    assert list(advice.fix.commands) == ["echo 'x y'"]
    assert list(advice.undo.commands) == ["echo 'x y'"]


def test_findings_of_a_host_are_worst_first() -> None:
    one = part(DATA / "hosts" / "intel-6.1.tar.xz")
    order = ("critical", "warning", "notice", "info", "unknown")
    severities = [advice.severity for advice in one.sections[0].advice]
    assert severities == sorted(severities, key=order.index)


def test_the_conformance_table_is_shown_whole() -> None:
    rows = json.loads((DOCS / "conformance.json").read_text())["rows"]
    table = figure(part(DOCS / "conformance.json"), "Programs on")
    for name in ("run", "equal", "named", "unexplained"):
        assert column(table, name) == [row[name] for row in rows]


def test_published_tables_are_those_of_wsw_tables() -> None:
    from worldswitch.costs.published import published

    one = report([], published=["next-2023-03"]).parts[0]
    (known,) = published().only("next-2023-03")
    assert column(one.sections[0].figures[0], "published") == [cell.seconds for cell in known.cells]


def test_as_json_it_has_all_inputs_and_the_weightiest_finding_first(tmp_path: Path) -> None:
    document = to_json(report(mixed(tmp_path)))
    assert [part["kind"] for part in document["parts"]] == ["trace", "trace", "result", "host", "host", "conformance"]
    assert json.loads(json.dumps(document)) == document
    weights = [finding["weight"] for finding in document["findings"]]
    assert weights == sorted(weights, reverse=True)


def test_what_is_the_same_as_printed_is_no_cost(tmp_path: Path) -> None:
    cells = [
        Cell(
            {"on": "model", "kernel": kernel, "program": "ssdd"},
            n=10,
            unit="step",
            per_op={"exits": exits, "exits_by_reason": {"read_dr6": 1, "cr0_sel_write": 16, "npf": exits - 17}},
        )
        for kernel, exits in (("5.10", 18.02), ("6.1", 18.016))
    ]
    save(Result(tuple(cells), Provenance("0.1.0")), tmp_path / "a.json")
    (told,) = part(tmp_path / "a.json").findings
    assert (told.level, told.headline) == ("notice", "ssdd: 18.02 exits for each step, wherever it ran.")
    assert "16 cr0_sel_write, 1.02 npf, 1 read_dr6" in told.why[0]


def test_computed_latencies_are_told_with_their_limits(tmp_path: Path) -> None:
    made = Cell(
        {"on": "model", "kernel": "6.1", "program": "create-vm"},
        n=1,
        unit="VM",
        time_ns=Spread(4e6, 25e6, 109e6),
        create_vm_ns=(25_000_000,),
    )
    save(Result((made,), Provenance("0.1.0")), tmp_path / "a.json")
    (told,) = part(tmp_path / "a.json").findings
    assert "computed" in figure(part(tmp_path / "a.json"), "How long KVM_CREATE_VM").origin.method
    assert list(told.why) == [
        "This is computed, not measured: 4.00 ms with all costs at their low limits, 109 ms at their high ones."
    ]


def test_what_is_done_by_hand_is_no_command_to_copy(tmp_path: Path) -> None:
    one = part(doctor(tmp_path / "a.json", command="# by hand: Run the guests on bare metal."))
    assert one.sections[0].advice[0].fix.commands == ()


def test_a_host_s_finding_counts_only_what_it_does_not_list() -> None:
    (told,) = part(DATA / "hosts" / "amd-5.10.tar.xz").findings
    assert list(told.why) == ["Notice: guest memory never gets huge pages, neither transparent nor reserved ones."]


def test_the_null_model_s_error_stands_beside_the_model_s() -> None:
    (told,) = report([], published=["next-2023-03"]).parts[0].findings
    assert "The null model" in told.why[0]


def test_a_snapshot_that_is_cut_off_says_so_first(tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar.xz"
    cut.write_bytes((DATA / "hosts" / "amd-5.10.tar.xz").read_bytes()[:3000])
    found = report([str(cut)]).findings
    assert "is not whole" in found[0].headline
    assert len(found) == 2
