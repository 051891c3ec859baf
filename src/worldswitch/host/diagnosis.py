"""Run all checks on a host."""

from __future__ import annotations

from collections.abc import Iterator

from worldswitch.host import finding
from worldswitch.host.facts import Host
from worldswitch.host.finding import Finding, Profile, Severity


def checks() -> tuple[finding.Check, ...]:
    """All checks, in the order their findings are shown."""
    import worldswitch.host.checks  # noqa: F401 - registers them

    return finding.registered()


def diagnose(host: Host, profile: Profile = Profile.DEFAULT) -> tuple[Finding, ...]:
    """All findings on a host, the worst first, and of one severity in the order of :func:`checks`."""
    found = [one for each in checks() for one in _findings(each, host, profile)]
    return tuple(sorted(found, key=lambda one: -one.severity))


def worst(findings: tuple[Finding, ...]) -> Severity:
    """The worst severity; ok if there are no findings."""
    return max((one.severity for one in findings), default=Severity.OK)


def _findings(each: finding.Check, host: Host, profile: Profile) -> Iterator[Finding]:
    found = each.examine(host, profile)
    for one in () if found is None else (found,) if isinstance(found, Finding) else found:
        yield one if one.rule else one._replace(rule=each.rule)
