"""What a side of a race of commands imports: its own files first, and a list of them for the check at the start.

A race copies this file as `sitecustomize.py` into a folder on the PYTHONPATH of each side, where it runs before the
command's program does; it needs Python alone. An editable install may have put a finder before the path (setuptools,
scikit-build-core, meson-python), and a script's own folder comes before PYTHONPATH: this finder stands before both.
"""

import atexit
import json
import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import ModuleType

ROOTS, LIST, FINDS = "TCLAB_RACE_ROOTS", "TCLAB_RACE_LIST", "TCLAB_RACE_FINDS"  # variables of a side


class OwnFiles:
    """A finder of modules in the folders that a side's code is imported from.

    **Arguments:**

    - `roots`: these folders.
    """

    def __init__(self, roots: "list[str]") -> None:
        self.roots = roots

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return where a side has a module, also inside a namespace package; a folder alone is none."""
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return None
        packages = name.split(".")[:-1]
        spec = PathFinder.find_spec(name, [os.path.join(root, *packages) for root in self.roots])
        return spec if spec is not None and spec.loader is not None and spec.origin else None


def list_imports(own: OwnFiles, folder: str) -> None:
    """Write what this process imported by names that the side has, and whether its bytecode is stored.

    It is a file of JSON: name → [the module's file, the side's own or null, whether compiled bytecode is there]. A name
    is the side's where its first part is a module or package of the side, or all of it a module in a namespace package.
    """
    listed = {}
    for name, module in list(sys.modules.items()):
        file, spec = getattr(module, "__file__", None), own.find_spec(name)
        is_own = name not in ("__main__", "sitecustomize") and (spec or own.find_spec(name.partition(".")[0]))
        if isinstance(file, str) and is_own:
            listed[name] = [os.path.realpath(file), spec and os.path.realpath(str(spec.origin)), _has_bytecode(module)]
    with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as out:
        json.dump(listed, out)


def _has_bytecode(module: ModuleType) -> bool:
    spec = module.__spec__  # another loader, such as pytest's, has its own bytecode
    stored = isinstance(spec, ModuleSpec) and type(spec.loader) is SourceFileLoader and spec.cached
    return bool(stored) and os.path.exists(str(stored))


def _run_hidden() -> None:
    """Run the `sitecustomize.py` that this one hides, if there is one."""
    mine = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != mine])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    _run_hidden()
    _own = OwnFiles(os.environ[ROOTS].split(os.pathsep))
    if FINDS in os.environ:
        sys.meta_path.insert(0, _own)
    if LIST in os.environ:
        atexit.register(list_imports, _own, os.environ[LIST])
