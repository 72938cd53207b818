"""What tclab needs besides torch and numpy, and the sentence that says so where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from tclab.errors import InputError


class MissingExtraError(ImportError, InputError):
    """A package that an extra of tclab brings is not installed."""


def need(what: str, extra: str, *modules: str) -> None:
    """Check that the modules that `what` needs are installed, without importing them; `extra` brings them.

    **Raises:** `MissingExtraError`: "tclab.sweeps needs pandas: pip install 'tclab[sweep]'".
    """
    for module in modules:
        try:
            there = find_spec(module) is not None
        except (ImportError, ValueError):
            there = False
        if not there:
            raise MissingExtraError(f"{what} needs {module}: pip install 'tclab[{extra}]'", name=module)
