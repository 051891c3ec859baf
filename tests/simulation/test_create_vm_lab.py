"""KVM_CREATE_VM on real kernels in the lab now, against the model with the costs that the lab once gave.

With --first-run, as they were recorded: the rounds of such runs begin at the same place between two ticks, which
otherwise fall into some of the calls and add 2 to 3 ms.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from click.testing import CliRunner

from worldswitch.cli import wsw

SETTINGS = {"auto": (), "never": ("--set", "nx_huge_pages=never"), "favordynmods": ("--set", "favordynmods=1")}


def medians(*words: str) -> dict[str, float]:
    """Machine -> median of KVM_CREATE_VM, ns."""
    asked = ["create-vm", "--on", "lab,model", "--kernel", "6.1", "--cpu", "intel", "--costs", "lab", "--smp", "1"]
    done = CliRunner().invoke(
        wsw, ["run", *asked, "--repeat", "8", "--first-run", *words, "--json"], standalone_mode=False
    )
    document: dict[str, Any] = json.loads(done.stdout)
    assert not document["failures"]
    return {cell["on"]: statistics.median(cell["create_vm_ns"]) for cell in document["results"]}


@pytest.mark.needs("lab-intel")
def test_the_ratios_of_the_lab_are_those_of_the_model() -> None:
    found = {name: medians(*words) for name, words in SETTINGS.items()}
    for one, other in (("auto", "never"), ("auto", "favordynmods"), ("favordynmods", "never")):
        real, model = (found[one][on] / found[other][on] for on in ("lab", "model"))
        assert model == pytest.approx(real, rel=0.15)
