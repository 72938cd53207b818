"""Which modules a side of a race of commands imports from elsewhere, though it has files of these names.

A race copies this file as `sitecustomize.py` into a folder on the PYTHONPATH of each side, where it runs before the
command's program does; it needs Python alone. The side's folder is first on that path, but an editable install may
have put a finder before the path (scikit-build-core, meson-python), and a script's own folder comes before it, too.
"""

import atexit
import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

# variables of a side: folders that it imports from, folders that its files are in, and where the list is written
ROOTS, OWN, LIST = "TCLAB_RACE_ROOTS", "TCLAB_RACE_OWN", "TCLAB_RACE_LIST"


def list_strangers(roots: "list[str]", own: "list[str]", folder: str) -> None:
    """Write which modules of the side's names this process imported from elsewhere, as JSON: name → file.

    A name is the side's where its first part is a module or package below `roots`, or all of it a module in a namespace
    package. Elsewhere is outside of `own`.
    """
    beneath = tuple(os.path.join(os.path.realpath(each), "") for each in own)

    def has(name: str) -> bool:
        stems = [os.path.join(root, *name.split(".")) for root in roots]
        return any(os.path.isfile(file) for stem in stems for file in (f"{stem}.py", f"{stem}/__init__.py"))

    strangers = {}
    for name, module in list(sys.modules.items()):
        file, first = getattr(module, "__file__", None), name.partition(".")[0]
        is_own = first not in {"sitecustomize", *sys.stdlib_module_names} and (has(name) or has(first))
        if isinstance(file, str) and is_own and not os.path.realpath(file).startswith(beneath):
            strangers[name] = file
    with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as out:
        json.dump(strangers, out)


def _run_hidden() -> None:
    """Run the `sitecustomize.py` that this one hides, if there is one."""
    mine = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != mine])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    _run_hidden()
    if os.path.isdir(os.environ[LIST]):
        _roots, _own = (os.environ[name].split(os.pathsep) for name in (ROOTS, OWN))
        atexit.register(list_strangers, _roots, _own, os.environ[LIST])
