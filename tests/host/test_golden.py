"""What the doctor finds on recorded hosts equals a list that was read through, finding by finding."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from worldswitch.host.diagnosis import diagnose
from worldswitch.host.finding import Profile, Severity
from worldswitch.host.gather import gather
from worldswitch.host.snapshot import Snapshot

HOSTS = Path(__file__).parents[1] / "data" / "hosts"
GOLDEN = tomllib.loads((Path(__file__).parent / "golden.toml").read_text())


def worst_by_id(host: str, profile: Profile) -> dict[str, str]:
    """By id of a finding: its worst severity."""
    found: dict[str, Severity] = {}
    for one in diagnose(gather(Snapshot(str(HOSTS / f"{host}.tar.xz"))), profile):
        found[one.id] = max(found.get(one.id, one.severity), one.severity)
    return {id: severity.label for id, severity in found.items()}


def test_every_recorded_host_is_in_the_list() -> None:
    assert sorted(GOLDEN) == sorted(path.name.removesuffix(".tar.xz") for path in HOSTS.glob("*.tar.xz"))
    assert len(GOLDEN) == 9


@pytest.mark.parametrize("host", sorted(GOLDEN))
def test_findings_of_the_default_profile_equal_the_list(host: str) -> None:
    assert worst_by_id(host, Profile.DEFAULT) == GOLDEN[host]["default"]


@pytest.mark.parametrize("profile", ["faas", "realtime", "hardened"])
@pytest.mark.parametrize("host", sorted(GOLDEN))
def test_what_a_profile_changes_equals_the_list(host: str, profile: str) -> None:
    """The list names what differs from the default profile; ``-`` is a finding that the profile does not have."""
    expected = GOLDEN[host]["default"] | GOLDEN[host][profile]
    assert worst_by_id(host, Profile(profile)) == {id: label for id, label in expected.items() if label != "-"}


@pytest.mark.parametrize("host", sorted(GOLDEN))
def test_hardened_never_gives_up_a_mitigation(host: str) -> None:
    for one in diagnose(gather(Snapshot(str(HOSTS / f"{host}.tar.xz"))), Profile.HARDENED):
        assert not any("nx_huge_pages=never" in str(step) or "mitigations=off" in str(step) for step in one.fix.steps)
