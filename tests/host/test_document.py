"""Metrics of the doctor, read by the rules of Prometheus's text format."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.machines import changed, machine, made
from worldswitch.host.diagnosis import diagnose
from worldswitch.host.document import Diagnosis, prometheus
from worldswitch.host.finding import Profile, Severity

SAMPLE = re.compile(r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (?P<value>-?\d+)')


def metrics(release: str = "6.12.117", times: int = 1) -> str:
    host = made(changed(machine("intel"), ("/proc/sys/kernel/osrelease", release)))
    return prometheus([Diagnosis(host, Profile.DEFAULT, diagnose(host, Profile.DEFAULT))] * times)


@given(st.text(min_size=1))
def test_every_line_is_a_sample_or_a_comment_whatever_the_host_says(release: str) -> None:
    text = metrics(release)
    assert text.endswith("# EOF\n")
    for line in text[:-1].split("\n"):
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line


def test_quotes_and_backslashes_are_escaped() -> None:
    assert r'release="6\"1\\n"' in metrics('6"1\\n')


def test_no_series_is_there_twice() -> None:
    series = [line.rpartition(" ")[0] for line in metrics().splitlines() if line[0] != "#"]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("severity", Severity, ids=lambda one: one.label)
def test_the_counts_are_those_of_the_findings(severity: Severity) -> None:
    host = made(machine("amd"))
    findings = diagnose(host, Profile.FAAS)
    text = prometheus([Diagnosis(host, Profile.FAAS, findings)])
    count = len([one for one in findings if one.severity is severity])
    assert f'wsw_doctor_findings{{severity="{severity.label}"}} {count}\n' in text


def test_hosts_of_one_name_are_told_apart() -> None:
    host = made(machine("amd"))
    found = Diagnosis(host, Profile.DEFAULT, diagnose(host, Profile.DEFAULT))
    text = prometheus([found, found])
    hosts = set(re.findall(r'wsw_doctor_unreadable_files\{host="([^"]*)"\}', text))
    assert hosts == {host.name, f"{host.name} (2)"}
