"""Findings as Markdown: everything that is told is there, and nothing of a host becomes markup."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from host.machines import changed, machine, made
from worldswitch.host.diagnosis import diagnose
from worldswitch.host.document import Diagnosis
from worldswitch.host.finding import Profile, Severity
from worldswitch.host.markdown import markdown


def of(release: str = "6.12.117") -> Diagnosis:
    host = made(changed(machine("intel"), ("/proc/sys/kernel/osrelease", release)))
    return Diagnosis(host, Profile.DEFAULT, diagnose(host, Profile.DEFAULT))


def test_every_finding_that_is_not_well_has_a_row() -> None:
    found = of()
    rows = re.findall(r"^\| (\w+) +\| ([a-z0-9-]+) +\|", markdown([found]), re.MULTILINE)
    told = [(one.severity.label, one.id) for one in found.findings if one.severity is not Severity.OK]
    assert [row for row in rows if row[0] != "severity"] == told


def test_each_fix_is_in_a_block_to_copy() -> None:
    found = of()
    blocks = re.findall(r"^(`{3,})sh\n(.*?)\n\1$", markdown([found]), re.MULTILINE | re.DOTALL)
    fixes = [one for one in found.findings if one.severity is not Severity.OK and one.fix.steps]
    assert fixes
    assert len(blocks) == sum(bool(change.steps) for one in fixes for change in (one.fix, one.undo))


@given(st.text(min_size=1))
def test_no_text_of_a_host_is_markup(release: str) -> None:
    line = markdown([of(release)]).splitlines()[2]
    assert line.isprintable()
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`|\[*]", line)


def test_several_hosts_have_a_heading_each() -> None:
    assert len(re.findall("^## ", markdown([of(), of()]), re.MULTILINE)) == 2
