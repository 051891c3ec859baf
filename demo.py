"""What `make demo` shows: a real trace of a real kernel, what its world switches cost, and what would remove them; and,
where there is a KVM, a guest that makes some."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WSW = str(Path(sys.executable).with_name("wsw"))
INTEL = "tests/data/vmx-5.10-ept/wp.trace.dat"
AMD = "tests/data/svm-5.10-npt-tdpmmu/wp.perf.data.zst"

STEPS = (
    (
        "A guest toggles CR0.WP 300 times under Linux 5.10 (Intel, EPT), recorded with trace-cmd:",
        ["analyze", INTEL, "--top", "3"],
    ),
    ("What would those exits have been under 6.12?", ["whatif", INTEL, "--to", "6.12"]),
    (
        "The same on AMD with the TDP MMU of 5.10, recorded with perf; the values written are not even in the file:",
        ["whatif", AMD, "--to", "6.12"],
    ),
    ("By which rule of KVM, and where is that written?", ["rules", "cr0-guest-owned"]),
    (
        "The same toggle on the executable KVM, under kernels and processors of your choice:",
        ["run", "cr0-wp", "--on", "model", "--kernel", "5.10,6.12", "--cpu", "intel,amd"],
    ),
    ("Published measurements of that, beside what the model predicts:", ["tables", "next-2023-03"]),
    (
        "Twenty VMs at once: KVM_CREATE_VM on three kernels, and with NX huge pages given up:",
        ["run", "create-vm", "--on", "model", "--kernel", "5.10,6.1,6.12", "--burst", "20"],
    ),
    ("What writing never to nx_huge_pages means there:", ["nx", "write", "never", "--kernel", "5.10,6.1,6.12"]),
    (
        "A host, as a snapshot of it says: what would make its VMs faster?",
        ["doctor", "tests/data/hosts/intel-6.1.tar.xz"],
    ),
    ("A timeline to open at ui.perfetto.dev:", ["convert", INTEL, "-o", "demo/vmx-5.10-ept.perfetto.json"]),
    (
        "All of it as one page, to open in a browser:",
        ["report", AMD, INTEL, "tests/data/hosts/intel-6.1.tar.xz", "docs/conformance.json", "-o", "demo/report.html"],
    ),
)

KVM = "/dev/kvm"
ON_KVM = (
    ("The same on the real KVM of this machine, by a guest that does nothing else:", ["run", "cr0-wp", "--on", "kvm"]),
)
UNSTABLE = 4
"""Status of a run on a host too busy for exact counts; they are shown all the same."""


def main() -> int:
    """Run the steps, each shown as it would be typed; the status of the first that fails, else 0."""
    (HERE / "demo").mkdir(exist_ok=True)
    usable = os.access(KVM, os.R_OK | os.W_OK)
    for text, arguments in STEPS + ON_KVM * usable:
        print(f"\n# {text}\n$ wsw {' '.join(arguments)}\n", flush=True)
        status = subprocess.run([WSW, *arguments], cwd=HERE, check=False).returncode
        if status not in (0, UNSTABLE):
            return status
    if not usable:
        print(f"\n# There is no {KVM} here that this user may open; with one, wsw run cr0-wp --on kvm runs a guest.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
