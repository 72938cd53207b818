"""torchrun, which also sends the exit codes of failed ranks: a line of JSON on standard output.

It is run as a file, not as a module of the package, so that it loads nothing but torch. The ranks share its standard
output.
"""

from __future__ import annotations

import json
import sys

from tclab._child_process import end_with_parent


def main() -> None:
    """Run torchrun with the arguments of the command line."""
    end_with_parent()  # torch takes seconds to import
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        print(json.dumps({"exit_codes": codes}), flush=True)
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
