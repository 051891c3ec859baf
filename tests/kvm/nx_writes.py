"""Runs in a guest of the lab: writes the values of values.json to KVM's NX parameters, prints errors and what is read.

values.json has lists of texts, one character a byte. Printed for each of "switch", values of nx_huge_pages: the result
from on and from off, both again with a VM, and after never; of "number": the results as ratio and as period; of
"loaded": the result of loading kvm.ko with that value. A result is an error's name or what is read. What sticks is
followed by loading the modules anew.
"""

import errno
import json
import os
import subprocess
from pathlib import Path

FOLDER = Path("/sys/module/kvm/parameters")
SWITCH, RATIO, PERIOD = "nx_huge_pages", "nx_huge_pages_recovery_ratio", "nx_huge_pages_recovery_period_ms"


def write(name, text):
    """Name of the error, empty if there was none."""
    try:
        file = os.open(FOLDER / name, os.O_WRONLY)
    except OSError as error:
        return errno.errorcode[error.errno]
    try:
        os.write(file, text)
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(file)
    return ""


def read(name):
    return (FOLDER / name).read_text().rstrip("\n")


def load(*parameters):
    """KVM's modules anew; how inserting kvm.ko ended."""
    vendor = "kvm_intel" if Path("/sys/module/kvm_intel").is_dir() else "kvm_amd"
    subprocess.run(["rmmod", vendor], check=False)
    subprocess.run(["rmmod", "kvm"], check=False)
    done = subprocess.run(["insmod", "/lab/modules/kvm.ko", *parameters], capture_output=True, check=False)
    if done.returncode:
        subprocess.run(["insmod", "/lab/modules/kvm.ko"], check=True)
    subprocess.run(["insmod", "/lab/modules/" + vendor + ".ko"], check=True)
    return done.returncode, done.stderr.decode()


def make_vm():
    from fcntl import ioctl

    device = os.open("/dev/kvm", os.O_RDWR)
    vm = ioctl(device, 0xAE01, 0)
    os.close(device)
    return vm


def tried(text, vm):
    """Result from on, and from off: error or what is read."""
    results = []
    for before in (b"force", b"off"):
        if write(SWITCH, before) == "EPERM":
            load()
            write(SWITCH, before)
        machine = make_vm() if vm else None
        error = write(SWITCH, text)
        results.append(error or read(SWITCH))
        if machine is not None:
            os.close(machine)
    return results


def words(results):
    return " ".join(results)


def main():
    given = json.loads(Path("values.json").read_text())
    values = {kind: [text.encode("latin-1") for text in texts] for kind, texts in given.items()}
    each = [tried(text, False) + tried(text, True) for text in values["switch"]]
    load()
    numbers = []
    for text in values["number"]:
        both = []
        for name in (RATIO, PERIOD):
            write(name, b"7")
            both.append(write(name, text) or read(name))
        numbers.append(words(both))
    write(SWITCH, b"never")
    for text, results in zip(values["switch"], each, strict=True):
        results.append(write(SWITCH, text) or read(SWITCH))
    loaded = []
    for text in values["loaded"]:
        code, message = load(SWITCH.encode() + b"=" + text)
        loaded.append("EINVAL" if code and "nvalid" in message else message.strip() or read(SWITCH))
    print(json.dumps({"switch": [words(one) for one in each], "number": numbers, "loaded": loaded}))


main()
