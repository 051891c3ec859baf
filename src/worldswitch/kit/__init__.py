"""The field kit: what runs on a production host, or in a lab's guest, with nothing but python3 (3.9 or newer).

``wsw bundle`` puts this package, the modules it needs and the assembled programs into one file.
"""

STANDARD_LIBRARY = (
    "argparse", "collections", "contextlib", "ctypes", "dataclasses", "difflib", "enum", "errno", "fcntl",
    "functools", "gc", "gzip", "importlib", "json", "math", "mmap", "os", "pathlib", "pkgutil", "platform", "re",
    "resource", "select", "shlex", "shutil", "signal", "stat", "struct", "subprocess", "sys", "textwrap",
    "threading", "time", "types", "typing", "warnings", "zlib",
)  # fmt: skip
"""All the kit imports of the standard library, beside what these import themselves; a trimmed one must have it."""
