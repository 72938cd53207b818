"""The folder that `CellGraph.to_folder` writes: `graph.json`, and Parquet tables of relations and node names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tclab._extras import need
from tclab._io import atomic_write
from tclab.errors import InputError
from tclab.graph._network import Network

if TYPE_CHECKING:
    import pyarrow as pa

HEADER_FILE = "graph.json"
_FORMAT = "tclab graph 1"
_OWN_FILE = re.compile(r"(relation|names)_\d+\.parquet|\.writing-.*")


class GraphFields(NamedTuple):
    """The fields of a `CellGraph` that a folder holds, in the order in which its constructor takes them."""

    num_nodes: Mapping[str, int]
    relations: Mapping[str, Network]
    deleted_type: str
    node_names: Mapping[str, Sequence[str]] | None
    source: str


def write_fields(graph: GraphFields, path: str | Path) -> None:
    """Write a graph's fields into a new or empty folder, or one in which a killed process began to.

    `read_fields` returns equal ones. Tables have the columns `source` and `target` (int64) and, where there are any,
    `weight` (float64) and `edge_type` (int64), or `name` (text). `graph.json` holds each table's SHA-256 and is written
    last, so that a folder with it is complete.

    **Raises:** `InputError` where the folder holds anything else, or cannot be written.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [file.name for file in folder.iterdir()]
        if HEADER_FILE in there or not all(map(_OWN_FILE.fullmatch, there)):
            raise InputError(f"{path} is not empty; expected a new folder for the graph")
        relations = []
        for number, (name, network) in enumerate(graph.relations.items()):
            columns = dict(zip(("source", "target"), network.edge_index.cpu().numpy(), strict=True))
            if network.weight is not None:
                columns["weight"] = network.weight.cpu().numpy()
            if network.edge_type is not None:
                columns["edge_type"] = network.edge_type.cpu().numpy()
            relations.append(
                {
                    "name": name,
                    "source": network.source,
                    "target": network.target,
                    "directed": network.directed,
                    "cascades": network.cascades,
                    "edges": network.num_edges,
                    **_write(folder, f"relation_{number}.parquet", columns),
                }
            )
        names = {
            kind: _write(folder, f"names_{number}.parquet", {"name": list(listed)})
            for number, (kind, listed) in enumerate((graph.node_names or {}).items())
        }
        header = {
            "format": _FORMAT,
            "origin": graph.source,
            "deleted_type": graph.deleted_type,
            "num_nodes": dict(graph.num_nodes),
            "names": names if graph.node_names is not None else None,
            "relations": relations,
        }
        atomic_write(folder / HEADER_FILE, json.dumps(header, indent=1))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def read_fields(path: str | Path) -> GraphFields:
    """Return the fields of the graph in a folder that `write_fields` wrote.

    **Raises:** `InputError` with the file where one is missing or has changed since it was written.
    """
    folder = Path(path)
    file = folder / HEADER_FILE
    try:
        header = json.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is not JSON: {error}") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise InputError(f"{file}: format is {str(found)[:60]!r}, expected {_FORMAT!r}")
    try:
        num_nodes = {str(kind): int(number) for kind, number in header["num_nodes"].items()}
        names = header["names"] and {
            kind: tuple(_read(folder, entry, ["name"])["name"].to_pylist()) for kind, entry in header["names"].items()
        }
        networks = [_network(folder, entry, num_nodes) for entry in header["relations"]]
        relations = {network.name: network for network in networks}
        return GraphFields(num_nodes, relations, str(header["deleted_type"]), names, header["origin"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: is not what was written: {type(error).__name__} {error}") from None


def _network(folder: Path, entry: dict[str, Any], num_nodes: dict[str, int]) -> Network:
    columns = ["source", "target"] + [more for more in ("weight", "edge_type") if more in entry["columns"]]
    table = _read(folder, entry, columns)
    if table.num_rows != entry["edges"]:
        raise InputError(f"{folder / entry['file']}: {table.num_rows} edges, expected {entry['edges']}")
    ends = [torch.from_numpy(table[end].to_numpy().copy()) for end in ("source", "target")]
    return Network(
        entry["name"],
        torch.stack(ends),
        entry["source"],
        entry["target"],
        num_nodes[entry["source"]],
        num_nodes[entry["target"]],
        weight=torch.from_numpy(table["weight"].to_numpy().copy()) if "weight" in columns else None,
        edge_type=torch.from_numpy(table["edge_type"].to_numpy().copy()) if "edge_type" in columns else None,
        directed=entry["directed"],
        cascades=entry["cascades"],
    )


def _pyarrow() -> Any:
    """Return pyarrow, which a graph that no file holds does without."""
    need("a folder of a graph", "readers", "pyarrow")
    import pyarrow.parquet

    return pyarrow


def _write(folder: Path, name: str, columns: dict[str, Any]) -> dict[str, Any]:
    pa = _pyarrow()
    atomic_write(folder / name, lambda file: pa.parquet.write_table(pa.table(columns), file))
    return {"file": name, "columns": list(columns), "sha256": _sha256(folder / name)}


def _read(folder: Path, entry: dict[str, Any], columns: list[str]) -> pa.Table:
    file = folder / Path(entry["file"]).name  # a header that someone sent does not reach outside its folder
    if file.exists() and not file.is_file():
        raise InputError(f"{file}: is no file")
    pa = _pyarrow()
    try:
        if _sha256(file) != entry["sha256"]:
            raise InputError(f"{file}: is not what was written: its SHA-256 is another")
        return pa.parquet.read_table(file, columns=columns)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise InputError(f"{file}: is not a table that was written here: {error}") from None


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
