"""Many snapshots, against the doctor asked of each."""

from pathlib import Path

import pytest

from worldswitch.fleet.doctor import SnapshotWork, doctor, summary
from worldswitch.fleet.engine import Here
from worldswitch.fleet.find import find
from worldswitch.fleet.folder import Folder
from worldswitch.host.diagnosis import diagnose
from worldswitch.host.document import Diagnosis
from worldswitch.host.finding import Profile, Severity
from worldswitch.host.gather import gather
from worldswitch.host.snapshot import Snapshot
from worldswitch.host.text import in_order

HOSTS = Path(__file__).parents[1] / "data" / "hosts"


def judged(tmp_path, *paths, profile="default"):
    folder = Folder(str(tmp_path / "out"))
    with folder.held():
        return doctor(find(map(str, paths or [HOSTS])), SnapshotWork(profile), folder, Here(), lambda _: None, False)


@pytest.mark.parametrize("profile", ["default", "faas"])
def test_hosts_are_in_the_order_and_with_the_counts_of_the_doctor(tmp_path, profile):
    alone = []
    for one in find([str(HOSTS)]):
        host = gather(Snapshot(one.path))
        alone.append(Diagnosis(host, Profile(profile), diagnose(host, Profile(profile))))
    found = summary(judged(tmp_path, profile=profile))["hosts"]
    assert [row["host"] for row in found] == [one.host.name for one in in_order(alone)]
    for row, one in zip(found, in_order(alone), strict=True):
        for level in (Severity.CRITICAL, Severity.WARNING, Severity.NOTICE, Severity.UNKNOWN):
            assert row[level.label] == sum(each.severity is level for each in one.findings)


def test_a_fix_names_every_host_it_is_for(tmp_path):
    fixes = judged(tmp_path).fixes
    ranks = [(-fix.severity, -len(fix.hosts)) for fix in fixes]
    assert ranks == sorted(ranks)
    for fix in fixes:
        for name in fix.hosts:
            findings = diagnose(gather(Snapshot(name)), Profile.DEFAULT)
            assert any(one.id == fix.id and one.fix.text == fix.text for one in findings)


def test_what_is_no_snapshot_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.tar").write_bytes(b"no tar" * 300)
    (tmp_path / "in" / "empty.tar").write_bytes(b"")
    (tmp_path / "in" / "good.tar.xz").write_bytes(next(iter(sorted(HOSTS.glob("*.xz")))).read_bytes())
    found = judged(tmp_path, tmp_path / "in")
    assert len(found.hosts) == 1
    assert {Path(path).name for path, _ in found.failed} == {"bad.tar", "empty.tar"}
