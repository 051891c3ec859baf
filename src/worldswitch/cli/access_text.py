"""What a run of the program ``access`` says: how many cases went as the manuals say, which not, what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from worldswitch.record.result import Cell

if TYPE_CHECKING:
    from worldswitch.guest.library.access import Judgement, Seen, Verdict


def is_access(cell: Cell) -> bool:
    """Whether the cell is of the shipped program, not of one of that name in a file."""
    return cell.dimensions.get("program") == "access" and "parameters.features" in cell.flat_dimensions()


def access_cases(cell: Cell) -> str:
    """The cases of one cell as text."""
    from worldswitch.report.tables import paragraphs, table

    found, missing = _judged(cell)
    by_setting: dict[str, list[Verdict]] = {}
    for verdict in found.verdicts:
        by_setting.setdefault(str(verdict.case.setting), []).append(verdict)
    rows = [
        [setting, len(each), sum(bool(one.seen) for one in each), sum(one.agrees for one in each)]
        for setting, each in by_setting.items()
    ]
    rows.append(["all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))])
    text = table(["access cases with", "run", "faulted", "as the manuals say"], rows, left=["access cases with"])
    wrong = [f"{one.case}: {_seen(one.seen)}; the manuals: {_wanted(one)}" for one in found.verdicts if not one.agrees]
    wrong += [f"{stray.operation}, which is no case: {_seen([stray])}" for stray in found.strays]
    text += paragraphs("\nNot as the manuals say", wrong)
    lacking = [f"{count} cases need {name}" for name, count in missing.items()]
    hint = "where a host offers them: wsw run access:features=" + "+".join((*_features(cell), *missing))
    return text + paragraphs("\nLeft out", [*lacking, hint] if lacking else [])


def access_document(cell: Cell) -> dict[str, Any]:
    """The same for JSON."""
    found, missing = _judged(cell)
    wrong = [one for one in found.verdicts if not one.agrees]
    return {
        "features": list(_features(cell)),
        "cases": len(found.verdicts),
        "agree": len(found.verdicts) - len(wrong),
        "disagree": [
            {
                "case": str(one.case),
                "operation": one.case.operation,
                "expected_error_code": one.case.error_code,
                "seen": [_fault(fault) for fault in one.seen],
            }
            for one in wrong
        ],
        "strays": [_fault(fault) for fault in found.strays],
        "left_out": missing,
    }


def _judged(cell: Cell) -> tuple[Judgement, dict[str, int]]:
    from worldswitch.guest.library.access import cases, judge, left_out

    features = _features(cell)
    return judge(cases(features), cell.faults), left_out(features)


def _features(cell: Cell) -> Sequence[str]:
    from worldswitch.guest.library.access import FEATURES, parse_features

    given = parse_features(str(cell.flat_dimensions()["parameters.features"]))
    return [name for name in FEATURES if name in given]


def _seen(faults: Sequence[Seen]) -> str:
    from worldswitch.x86.exceptions import exception_name

    return ", ".join(f"{exception_name(f.vector)} {f.error_code:#x} at {f.cr2:#x}" for f in faults) or "no fault"


def _wanted(verdict: Verdict) -> str:
    code = verdict.case.error_code
    return "no fault" if code is None else f"#PF {code:#x} at {verdict.case.va:#x}"


def _fault(fault: Seen) -> dict[str, Any]:
    return {"operation": fault.operation, "vector": fault.vector, "error_code": fault.error_code, "cr2": fault.cr2}
