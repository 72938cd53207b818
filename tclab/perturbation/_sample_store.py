"""Samples on disk: LMDB files of encoded samples, and perturbations in one, as integers or as JSON."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from tclab._display import bytes_text
from tclab.errors import InputError, need
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation._deletions import Deletions, Int64s, Perturbations

T = TypeVar("T")

_PAGE = 4096  # LMDB's pages here
_INLINE = 2020  # a value that leaves less than two to a page gets pages of its own, with 16 bytes of header
_COMMIT_BYTES = 64 << 20
_LEAF = _PAGE * 65 / 64  # and its part of the tree above
_MARGIN = 1 << 20  # space to write pages again


def lmdb_module() -> ModuleType:
    """Return the package lmdb, which only those need who store samples.

    **Raises:** `MissingExtraError` that says how to install it.
    """
    need("a store of samples", "data", "lmdb")
    return import_module("lmdb")


def _key(i: int) -> bytes:
    return i.to_bytes(8, "big")  # keys sort as their samples do


def disk_bytes(value_bytes: Int64s) -> int:
    """Return how many bytes of disk a store takes, of values of so many bytes, [S] int64; about, of mixed sizes."""
    own_pages = -(-(value_bytes + 16) // _PAGE) * _PAGE + 64
    on_a_leaf = np.maximum((_PAGE - 16) // (value_bytes + 19), 1)  # how many, each with its key and a pointer
    return int(np.where(value_bytes > _INLINE, own_pages, _LEAF / on_a_leaf).sum()) + _MARGIN


def build_store(path: Path, value: Callable[[int], bytes], value_bytes: Int64s) -> Store:
    """Write encoded samples into a file, unless it is there, and return it opened for reading.

    It is written under the name `path` + `.tmp` and renamed when it is whole; a build that was killed begins anew.

    **Arguments:**

    - `value`: a sample's number → its encoding.
    - `value_bytes`: how many bytes each sample's encoding has, [S] int64.

    **Raises:** `InputError` where the disk has too little space, before anything is written or once it is full;
    where the file is something else.
    """
    lmdb, store = lmdb_module(), Store(path, len(value_bytes))
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        if not path.exists():
            temporary.unlink(missing_ok=True)
            needed, free = disk_bytes(value_bytes), shutil.disk_usage(path.parent).free
            if needed > free:
                has = f"its disk has {bytes_text(free)}; ask for fewer samples or choose another disk"
                raise InputError(f"the store {path} needs {bytes_text(needed)} for {len(store):,} samples, and {has}")
            _write(temporary, value, value_bytes)
            temporary.rename(path)
        store.opened()
    except (lmdb.Error, OSError) as error:
        raise InputError(f"the store {path} cannot be written or read: {error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
    return store


def _write(path: Path, value: Callable[[int], bytes], value_bytes: Int64s) -> None:
    map_size, samples = 2 * disk_bytes(value_bytes) + _COMMIT_BYTES, len(value_bytes)
    with lmdb_module().open(str(path), subdir=False, lock=False, sync=False, map_size=map_size) as environment:
        step = max(1, _COMMIT_BYTES * samples // max(int(value_bytes.sum()), 1))  # a transaction's pages are in memory
        for begin in range(0, samples, step):
            with environment.begin(write=True) as transaction:
                for i in range(begin, min(begin + step, samples)):
                    transaction.put(_key(i), value(i), append=True)
        environment.sync(True)


class Store:
    """A file that `build_store` made, opened for reading once in each process that reads it."""

    def __init__(self, path: Path, samples: int) -> None:
        self.path, self._length = str(path), samples
        self._environment: Any = None

    def opened(self) -> Any:
        """Return LMDB's environment of the file.

        **Raises:** `lmdb.Error` for a file that is none.
        """
        if self._environment is None:
            # no lock: a store is never written to, may be read after a fork, and without permission to write
            # no readahead, as in the case study: a large value that is not in memory is read page by page
            self._environment = lmdb_module().open(self.path, subdir=False, readonly=True, lock=False, readahead=False)
        return self._environment

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_environment": None}

    def __len__(self) -> int:
        return self._length

    def read(self, indices: Sequence[int], take: Callable[[memoryview], T]) -> list[T]:
        """Return `take` of each sample's value, all read in one transaction.

        **Arguments:**

        - `indices`: positions of the samples in their dataset.
        - `take`: given the value where it lies on disk; it must copy what it keeps.

        **Raises:** `IndexError` for a sample that the store does not have.
        """
        for i in indices:
            if not 0 <= i < self._length:
                raise IndexError(f"sample {i} of {self._length} in {self.path}")
        with self.opened().begin(buffers=True) as transaction:
            return [take(transaction.get(_key(i))) for i in indices]

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._environment is not None:
            self._environment.close()
        self._environment = None


class StoredSamples:
    """Perturbations in LMDB, a batch read in one transaction.

    Encodings: `lmdb` holds the score (float32) and the nodes (int32) of a sample, 16 bytes for three nodes;
    `json` one object a sample in the shape of the case study's records, with its nodes by name. The case study
    builds checked objects (pydantic) of them; here a sample is decoded and its names are looked up, which is the
    least that the encoding costs.
    """

    def __init__(self, graph: CellGraph, perturbations: Perturbations, path: Path, encoding: str) -> None:
        numbered = [str(node) for node in range(graph.num_nodes[graph.deleted_type])]
        names = (graph.node_names or {}).get(graph.deleted_type, numbered)
        by_name = partial(_of_record, {name: i for i, name in enumerate(names)})
        self._decode = by_name if encoding == "json" else _of_words

        def value(i: int) -> bytes:
            nodes, score = perturbations.deletions[i].tolist(), float(perturbations.scores[i])
            if encoding == "json":
                return _record([names[node] for node in nodes], score)
            return struct.pack(f"<f{len(nodes)}i", score, *nodes)

        value_bytes = np.array([len(value(i)) for i in range(len(perturbations))], dtype=np.int64)
        self._store = build_store(path, value, value_bytes)

    def __len__(self) -> int:
        return len(self._store)

    def read(self, indices: Sequence[int]) -> Perturbations:
        """Return some samples, in the order asked for.

        **Raises:** `IndexError` for a sample that is not there.
        """
        samples = self._store.read(indices, self._decode)
        nodes = np.array([node for _, deleted in samples for node in deleted], dtype=np.int64)
        length = np.array([len(deleted) for _, deleted in samples], dtype=np.int64)
        scores = torch.tensor([score for score, _ in samples], dtype=torch.float32)
        return Perturbations(Deletions.joined(nodes, length), scores)


Samples = Perturbations | StoredSamples  # read a batch at a time


def stored(graph: CellGraph, perturbations: Perturbations, path: Path, store: str) -> Samples:
    """Return the samples where a point's `store` has them: in memory, or in an LMDB file that is built at `path`."""
    return perturbations if store == "memory" else StoredSamples(graph, perturbations, path, store)


_ENVIRONMENT = {"media": {"name": "YEPD", "state": "solid"}, "temperature": {"value": 30.0, "unit": "Celsius"}}
_PHENOTYPE = {
    "graph_level": "hyperedge", "label_name": "gene_interaction", "gene_interaction": 0.0,
    "label_statistic_name": "gene_interaction_p_value", "gene_interaction_p_value": None,
}  # fmt: skip
_REFERENCE = {
    "experiment_reference_type": "gene interaction",
    "genome_reference": {"species": "Saccharomyces cerevisiae", "strain": "S288C"},
    "environment_reference": _ENVIRONMENT,
    "phenotype_reference": _PHENOTYPE,
}


def _record(genes: Sequence[str], score: float) -> bytes:
    """Return a sample's record: experiment and reference, most of it the same in all samples."""
    deleted = [
        {"perturbation_type": "deletion", "systematic_gene_name": name, "perturbed_gene_name": name} for name in genes
    ]
    experiment = {
        "experiment_type": "gene interaction",
        "genotype": {"perturbations": deleted},
        "environment": _ENVIRONMENT,
        "phenotype": _PHENOTYPE | {"gene_interaction": score},
    }
    return json.dumps({"experiment": experiment, "experiment_reference": _REFERENCE}).encode()


def _of_record(node_of: Mapping[str, int], value: memoryview) -> tuple[float, list[int]]:
    """Return the score and the nodes of a sample's record, given each node's id by its name."""
    experiment = json.loads(bytes(value))["experiment"]
    nodes = [node_of[gene["systematic_gene_name"]] for gene in experiment["genotype"]["perturbations"]]
    return experiment["phenotype"]["gene_interaction"], nodes


def _of_words(value: memoryview) -> tuple[float, list[int]]:
    score, *nodes = struct.unpack(f"<f{len(value) // 4 - 1}i", value)
    return score, nodes
