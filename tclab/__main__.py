"""`python -m tclab` is the command `tclab`."""

import importlib
import sys

from tclab.errors import MissingExtraError


def main() -> int:
    """Run the command and return its exit code; without the packages that it needs, say so."""
    try:
        command = importlib.import_module("tclab.command")
    except MissingExtraError as error:
        print(f"tclab: {error}", file=sys.stderr)
        return 2
    return int(command.main())


if __name__ == "__main__":
    sys.exit(main())
