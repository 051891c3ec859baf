"""Programs made by chance on which the model once differed from real KVM: what that counted holds for good."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from worldswitch.conform.session import host_of
from worldswitch.guest import toml
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import run

HERE = Path(__file__).parent
CELLS = tomllib.loads((HERE / "conform_lab.toml").read_text(encoding="utf-8"))["cell"]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell["program"])
def test_the_model_counts_what_real_kvm_did(cell: dict[str, Any]) -> None:
    program = toml.load(HERE / "programs" / f"{cell['program']}.toml")
    policy = Policy.of(cell["kernel"], cell["cpu"], cell["mmu"], [])
    found = run(program, policy, host=host_of(cell["cpu"])).exits_by_reason
    assert {reason: found.get(reason, 0) for reason in cell["exits"]} == cell["exits"], cell["why"]
