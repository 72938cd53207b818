"""The command `tclab`.

A verb's module is imported when the verb is run: `tclab --help` imports no torch.
"""

from tclab.errors import need

need(__name__, "sweep", "cyclopts")

from tclab.command._app import main

__all__ = ["main"]
__dir__ = __all__.copy  # completion offers these
