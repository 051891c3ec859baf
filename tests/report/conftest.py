"""Reports of real recordings, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
TDPMMU = DATA / "svm-5.10-npt-tdpmmu" / "wp.trace.dat"


@pytest.fixture(scope="session")
def churn_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page about the recording of the TDP MMU of 5.10."""
    from worldswitch.report.build import report
    from worldswitch.report.html import html
    from worldswitch.report.study import Question

    path = tmp_path_factory.mktemp("pages") / "churn.html"
    path.write_text(html(report([str(TDPMMU)], Question(("6.12",)))), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def mixed_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about one input of each kind."""
    from report_inputs import mixed
    from worldswitch.report.build import report
    from worldswitch.report.html import html

    folder = tmp_path_factory.mktemp("mixed")
    path = folder / "mixed.html"
    path.write_text(html(report(mixed(folder), published=["next-2023-03"])), encoding="utf-8")
    return path
