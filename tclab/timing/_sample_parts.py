"""What a dataset does at a moment: read, decode, validate, build or its own code, by the library that it calls."""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

READ, DECODE, VALIDATE, BUILD, OWN, COLLATE = "read", "decode", "validate", "build", "own code", "collate"
PARTS = (READ, DECODE, VALIDATE, BUILD, OWN, COLLATE)

# module → part; the longest that fits counts
_MODULES = {
    **dict.fromkeys(
        ("lmdb", "io", "_io", "pathlib", "os", "posix", "shutil", "mmap", "sqlite3", "_sqlite3", "h5py", "zarr",
         "tables", "pyarrow", "fsspec", "s3fs", "requests", "urllib", "socket", "ssl", "webdataset",
         "zipfile", "tarfile", "torch.serialization", "torch.storage", "numpy.lib.npyio", "numpy.lib._npyio_impl",
         "numpy.memmap",
         "numpy.lib._format_impl", "netCDF4"),
        READ,
    ),
    **dict.fromkeys(
        ("json", "_json", "msgspec", "pickle", "_pickle", "orjson", "ujson", "rapidjson", "simplejson", "yaml", "_yaml",
         "csv", "_csv", "gzip", "zlib", "bz2", "_bz2", "lzma", "_lzma", "zstandard", "lz4", "snappy", "blosc", "struct",
         "_struct", "msgpack", "cbor2", "google.protobuf", "base64", "binascii", "codecs", "PIL", "cv2", "imageio",
         "torchvision.io", "torchaudio", "soundfile", "ast", "tomllib"),
        DECODE,
    ),
    **dict.fromkeys(("pydantic", "pydantic_core", "jsonschema", "marshmallow", "cattrs", "attr", "voluptuous",
                     "typeguard", "pandera"), VALIDATE),
    **dict.fromkeys(("torch", "torch_geometric", "torchvision", "numpy", "pandas", "scipy", "networkx"), BUILD),
}  # fmt: skip
# where what is called cannot be known: by the method's name
_METHODS = {
    "loads": DECODE, "unpackb": DECODE, "decode": DECODE, "decompress": DECODE, "unpack": DECODE,
    "read": READ, "readline": READ, "read_bytes": READ, "fetchone": READ,
    "model_validate": VALIDATE, "model_validate_json": VALIDATE, "validate_python": VALIDATE,
}  # fmt: skip


def part_of_module(module: str) -> str | None:
    """Return the part of a sample's making that a library does; `None` if its name does not tell."""
    if module.startswith("torch.utils.data"):  # which calls the dataset
        return None
    while module:
        if module in _MODULES:
            return _MODULES[module]
        module = module.rpartition(".")[0]
    return None


def positions_of(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    """Return first and last line, and begin and end column, of an instruction that is given as `f_lasti`."""
    return next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))


def part_of_call(frame: FrameType) -> str | None:
    """Return the part of what a line calls in C at this moment: the stack has no frame for it, its source has the name.

    Of `txn.get(key)` it looks `txn` up and asks which library the object is of. `None` where that is not known.
    """
    first, last, begin, end = positions_of(frame.f_code, frame.f_lasti)
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        node: Any = ast.parse(b"(" + b"".join(lines).strip() + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if isinstance(node, ast.Call):
        return _of_callee(node.func, frame)
    value = {"Subscript": "value", "BinOp": "left", "Attribute": "value", "Compare": "left"}.get(type(node).__name__)
    found = _value(getattr(node, value), frame) if value else None
    return None if found is None else _of_object(found)


def _of_callee(node: Any, frame: FrameType) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if isinstance(owner, ModuleType):
            return part_of_module(f"{owner.__name__}.{node.attr}")
        return (None if owner is None else _of_object(owner)) or _METHODS.get(node.attr)
    found = _value(node, frame)
    return None if found is None else _of_object(found)


def _value(node: Any, frame: FrameType) -> Any:
    """Return the value of a name or of a name's attribute, without running a property; `None` if unknown."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if owner is None:
            return None
        if isinstance(owner, ModuleType):
            return vars(owner).get(node.attr)
        return getattr(owner, "__dict__", {}).get(node.attr)
    return None


def _of_object(value: Any) -> str | None:
    """Return the part by the library of an object's type, of a class or of a function."""
    if not isinstance(value, type) and callable(value) and isinstance(getattr(value, "__module__", None), str):
        part = part_of_module("io" if value is open else value.__module__)
        if part is not None:
            return part
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        part = part_of_module(kind.__module__)
        if part is not None:
            return part
        if kind.__module__ == "builtins":  # what lmdb, written in C, says of its types
            for name in ("lmdb", "lmdb.cpython"):
                if vars(sys.modules.get(name, builtins)).get(kind.__name__) is kind and name in sys.modules:
                    return READ
    return None
