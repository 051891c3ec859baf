"""A report of any files: read, studied, and put in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from worldswitch.report import inputs
from worldswitch.report.document import Finding, Part, Report
from worldswitch.report.study import Question
from worldswitch.report.words import terms

if TYPE_CHECKING:
    from worldswitch.record.trace import EventSource

Watch = Callable[["EventSource", str], "EventSource"]


def report(
    paths: Sequence[str],
    question: Question = Question(),  # noqa: B008 - frozen
    *,
    published: Sequence[str] | None = None,
    profile: str = "default",
    title: str = "",
    command: str = "",
    made: str = "",
    watch: Watch | None = None,
) -> Report:
    """A report of the files *paths*.

    Args:
        paths: Traces, saved Results, snapshots of hosts, documents of the doctor, conformance tables; see
            :func:`worldswitch.report.inputs.read`.
        question: What to ask of each trace.
        published: Names of published tables to put beside the model; empty for all, None for none.
        profile: By which the doctor judges snapshots.
        title, command, made: What the page says of itself: a title, how to make it again, and when it was made.
        watch: Called with each trace's source and name; gives a source with the same events.

    Raises:
        MissingError, TraceFormatError: A file cannot be read, or is none of these.
        UnknownNameError: A kernel, setting or table nobody knows.
    """
    from worldswitch import __version__

    read = [one for path in paths for one in inputs.read(path, profile)]
    parts = [_part(one, f"p{place}", question, watch) for place, one in enumerate(read)]
    if published is not None:
        from worldswitch.report.sections import published as tables

        parts.append(tables.part(published, f"p{len(parts)}"))
    found = [one for part in parts for one in part.findings]
    heading = title or (f"World switches in {paths[0]}" if len(paths) == 1 else f"World switches in {len(paths)} files")
    return Report(heading, parts, command, __version__, made, terms(_terms(found)))


def _part(one: inputs.Read, ident: str, question: Question, watch: Watch | None) -> Part:
    if isinstance(one, inputs.TraceInput):
        from worldswitch.report.sections import trace
        from worldswitch.report.study import study

        path, opened = one.path, one.opened
        return trace.part(study(path, lambda: watch(opened(), path) if watch else opened(), question), ident)
    if isinstance(one, inputs.ResultInput):
        from worldswitch.report.sections import results

        return results.part(one, ident)
    if isinstance(one, inputs.HostInput):
        from worldswitch.report.sections import doctor

        return doctor.part(one, ident)
    from worldswitch.report.sections import conformance

    return conformance.part(one, ident)


def _terms(found: Sequence[Finding]) -> list[str]:
    """Keys of the words that need explaining: those the findings use."""
    text = " ".join(
        " ".join((one.headline, *one.why, *one.remedy, *(step.title for step in one.steps))) for one in found
    )
    wanted = ["exit"] if "exit" in text or "guest" in text else []
    wanted += ["WP"] if "CR0.WP" in text else []
    wanted += ["page tables"] if "page table" in text or "root" in text else []
    wanted += ["refault"] if "refault" in text else []
    wanted += ["TDP MMU"] if "TDP MMU" in text or "legacy MMU" in text else []
    return wanted + (["interval"] if "95 %" in text else [])
