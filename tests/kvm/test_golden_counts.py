"""What a step of ssdd on a KERNEXEC kernel costs in counts, on every host.

Expected: the program as it was traced step by step (rt-tests' ssdd: 3 system calls, 1 #DB, 2 switches a step; the
public grsecurity port to 4.9: where WP is toggled), and what the patches that keep roots on a change of WP, let the
guest own WP, and let it own CR4.CET say they remove.
"""

from __future__ import annotations

from collections import Counter

import pytest

from worldswitch.guest import library
from worldswitch.guest import operations as ops
from worldswitch.kvm.policy import Policy
from worldswitch.kvm.vcpu import Run, run

# Writes of CR0 that change WP, without and with PCIDs.
WRITES = {"pcid=false": 16, "pcid=true": 8}
# Kernels by how far the patches got: none, roots kept on a change of WP, WP owned by the guest.
NONE, KEPT, OWNED = "6.2.0", "6.2.0+cr0-wp-init-only", "6.12"
STAGES = (NONE, KEPT, OWNED)
STEPS = 10


def _step(spec: str, policy: Policy, record: bool = False) -> Counter[str]:
    """Exits by reason and counters of a step, once all is warm; CR writes that KVM saw under "CR0" and "CR4"."""
    program = library.program(f"ssdd:{spec}")
    few, more = (run(program, policy, n, record=record) for n in (STEPS, 2 * STEPS))
    got = _counts(more)
    got.subtract(_counts(few))
    assert all(count % STEPS == 0 for count in got.values()), got
    return Counter({name: count // STEPS for name, count in got.items() if count})


def _counts(got: Run) -> Counter[str]:
    found = Counter({**got.counters, **got.exits_by_reason})
    for name, row in got.rows or ():
        if name == "kvm_cr" and row["rw"] == 1:
            found[f"CR{row['cr']}"] += 1
    return found


def _operations(body: tuple[ops.Operation, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for operation in body:
        if isinstance(operation, ops.WriteCr):
            found[f"CR{operation.cr}"] += 1
        else:
            found[operation.word] += 1
    return found


@pytest.mark.parametrize("cet", [False, True])
@pytest.mark.parametrize("pcid", WRITES)
def test_the_structure_of_a_step(pcid: str, cet: bool) -> None:
    """3 system calls and an exception are 4 round trips; the 2 signals (SIGTRAP, SIGCHLD) are writes nobody sees."""
    (vcpu,) = library.program(f"ssdd:{pcid},cet={str(cet).lower()}").vcpus
    body, handler = _operations(vcpu.body), _operations(vcpu.handlers[0].fix)
    assert (body["user"], body["single-step"]) == (3, 1)
    assert body["switch-space"] == 2 + (8 if pcid == "pcid=true" else 0)
    assert body["CR0"] + handler["CR0"] == WRITES[pcid]
    assert body["CR4"] + handler["CR4"] == (WRITES[pcid] if cet else 0)
    assert (handler["read-dr"], handler["write-dr"]) == (1, 1)


@pytest.mark.parametrize("mmu", ["tdp", "legacy"])
@pytest.mark.parametrize("pcid", WRITES)
def test_intercepted_wp_exits_at_each_write_and_owned_wp_at_none(pcid: str, mmu: str) -> None:
    exits = [_step(pcid, Policy.of(kernel, mmu=mmu)) for kernel in STAGES]
    assert [one["CR_ACCESS"] for one in exits] == [WRITES[pcid], WRITES[pcid], 0]


@pytest.mark.parametrize("mmu", ["tdp", "legacy"])
@pytest.mark.parametrize("pcid", WRITES)
def test_about_two_exits_remain(pcid: str, mmu: str) -> None:
    got = _step(pcid, Policy.of(OWNED, mmu=mmu))
    assert got["exits"] == 2
    assert (got["EXCEPTION_NMI"], got["DR_ACCESS"]) == (1, 1)


@pytest.mark.parametrize("pcid", WRITES)
def test_cet_exits_at_each_write_until_it_is_owned(pcid: str) -> None:
    intercepted, both = (_step(f"{pcid},cet=true", Policy.of(k), record=True) for k in ("7.2-cr4-cet-owned", "7.2"))
    assert (intercepted["CR0"], intercepted["CR4"]) == (0, WRITES[pcid])
    assert (both["CR0"], both["CR4"], both["exits"]) == (0, 0, 2)


@pytest.mark.parametrize("mmu", ["tdp", "legacy"])
@pytest.mark.parametrize("pcid", WRITES)
def test_amd_keeps_its_exits(pcid: str, mmu: str) -> None:
    for kernel in (*STAGES, "7.2", "7.3"):
        assert _step(pcid, Policy.of(kernel, "amd", mmu))["cr0_sel_write"] == WRITES[pcid]
    got = _step(f"{pcid},cet=true", Policy.of("7.2", "amd", mmu))
    assert (got["cr0_sel_write"], got["write_cr4"]) == (WRITES[pcid], WRITES[pcid])


@pytest.mark.parametrize("cpu", ["intel", "amd"])
@pytest.mark.parametrize("pcid", WRITES)
def test_shadow_paging_knows_no_patch(pcid: str, cpu: str) -> None:
    for kernel in ("5.10", "5.15", *STAGES, "7.2"):
        got = _step(pcid, Policy.of(kernel, cpu, "shadow"), record=True)
        assert got["CR0"] == WRITES[pcid]
        assert got["mmu_resets"] == WRITES[pcid]


@pytest.mark.parametrize("pcid", WRITES)
def test_old_tdp_mmu_rebuilds_its_pages_at_each_write_and_patched_never(pcid: str) -> None:
    for kernel in ("5.10", "5.15"):
        got = _step(pcid, Policy.of(kernel, mmu="tdp"))
        assert got["root_unloads"] == got["root_loads"] == got["mmu_resets"] == WRITES[pcid]
        assert got["EPT_VIOLATION"] >= WRITES[pcid] // 2  # one of the two trees is freed, and faults its pages in anew
        patched = _step(pcid, Policy.of(f"{kernel}+cr0-wp-init-only", mmu="tdp"))
        assert (patched["root_loads"], patched["EPT_VIOLATION"]) == (0, 0)
        assert patched["CR_ACCESS"] == WRITES[pcid]


@pytest.mark.parametrize("mmu", ["tdp", "legacy"])
def test_roots_are_loaded_at_each_write_until_they_are_kept(mmu: str) -> None:
    loads = [_step("pcid=true", Policy.of(kernel, mmu=mmu))["root_loads"] for kernel in STAGES]
    assert loads == [8, 0, 0]


def test_shadow_paging_stays_where_the_others_fall() -> None:
    """Exits and loads of roots together, in the order of the patches."""
    work = {
        mmu: [sum(_step("pcid=true", Policy.of(k, mmu=mmu))[name] for name in ("exits", "root_loads")) for k in STAGES]
        for mmu in ("tdp", "legacy", "shadow")
    }
    for mmu in ("tdp", "legacy"):
        assert work[mmu][0] > work[mmu][1] > work[mmu][2] == 2
    assert len(set(work["shadow"])) == 1


def test_the_old_tdp_mmu_comes_out_slower_than_shadow_paging() -> None:
    """In time, by costs fitted to other cells; published: 88.7 and 66.1 s, and 69.7 and 64.9 with shadow paging."""
    from worldswitch.costs.beside import beside
    from worldswitch.costs.published import published

    model = {one.name: one.model for one in beside(published()).cells}
    for table in ("5.10.177", "5.15.106"):
        assert model[f"{table}/before/TDP"] > model[f"{table}/before/shadow"]
