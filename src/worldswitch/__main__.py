"""The ``wsw`` script, and ``python -m worldswitch``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``wsw``; a Ctrl-C while it is still being loaded ends it as one does later."""
    try:
        from worldswitch.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("wsw: interrupted\n")
        sys.exit(130)  # as worldswitch.cli.INTERRUPTED, which may not be there yet
    run()


if __name__ == "__main__":
    main()
