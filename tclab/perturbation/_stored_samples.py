"""Samples in a store: their nodes and scores as integers, or as JSON objects like those of the case study."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tclab.errors import unknown
from tclab.graph._cell_graph import CellGraph
from tclab.perturbation._build_store import StoreSize, build_store
from tclab.perturbation._dataset import Perturbations, Samples
from tclab.perturbation._deletions import Deletions
from tclab.perturbation._sample_store import damage_named

STORES = ("memory", "lmdb", "json")
_WORD = np.dtype("<i4")


class StoredSamples:
    """Perturbations in LMDB, a batch read in one transaction.

    Encodings: `lmdb` holds the score (float32) and the nodes (int32) of a sample, 16 bytes for three nodes;
    `json` one object a sample in the shape of the case study's records, with its nodes by name. The case study
    builds checked objects (pydantic) of them; here a sample is decoded and its names are looked up, which is the
    least that the encoding costs. `build_store` says what becomes of a folder that is there already.
    """

    def __init__(self, graph: CellGraph, perturbations: Perturbations, folder: str | Path, encoding: str) -> None:
        if encoding not in STORES[1:]:
            raise unknown("encoding", encoding, STORES[1:])
        self.encoding = encoding
        self._num_nodes = graph.num_nodes[graph.deleted_type]
        names = names_of(graph)
        self._places = {name: place for place, name in enumerate(names)} if encoding == "json" else {}
        number, most = len(perturbations), perturbations.deletions.most
        if encoding == "json":

            def value(sample: int) -> bytes:
                nodes = perturbations.deletions[sample].tolist()
                return _record([names[node] for node in nodes], float(perturbations.scores[sample]))

            # at most: as many genes as any sample has, each with the longest name, and a score of 24 characters
            longest = max(names, key=lambda name: len(json.dumps(name)), default="")
            bytes_each = np.full(number, len(_record([longest] * most, 0.0)) + 24)
        else:

            def value(sample: int) -> bytes:
                score = perturbations.scores[sample].numpy().astype("<f4").tobytes()
                return score + perturbations.deletions[sample].numpy().astype(_WORD).tobytes()

            bytes_each = _WORD.itemsize * (1 + perturbations.deletions.ptr.diff().numpy())
        self._store = build_store(
            folder,
            value,
            size=StoreSize.of(bytes_each),
            header={
                "encoding": encoding,
                "graph": graph.fingerprint(),
                "perturbations": perturbations.fingerprint(),
            },
        )

    def __len__(self) -> int:
        return len(self._store)

    def read(self, indices: Sequence[int]) -> Perturbations:
        """Return some samples, in the order asked for.

        **Raises:** `IndexError` for a sample that is not there; `InputError` for one that is damaged.
        """
        if self.encoding == "json":
            records = self._store.read(indices, _decoded)
            with damage_named(self._store.path):
                return _of_records(records, self._places)
        values = self._store.read(indices, bytes)
        length, rest = np.divmod(np.fromiter(map(len, values), np.int64, len(values)), _WORD.itemsize)
        with damage_named(self._store.path):
            if rest.any() or not length.all():
                raise ValueError("a sample is no score and nodes")
            words = np.frombuffer(b"".join(values), dtype=_WORD)
            scores = np.cumsum(length) - length  # where each sample begins
            is_node = np.ones(len(words), dtype=np.bool_)
            is_node[scores] = False
            nodes = words[is_node].astype(np.int64)
            if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self._num_nodes:
                raise ValueError(f"a sample deletes node {nodes.max()} of {self._num_nodes}")
        return Perturbations(Deletions.joined(nodes, length - 1), torch.from_numpy(words.view("<f4")[scores]))

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def stored(graph: CellGraph, perturbations: Perturbations, folder: Path, store: str) -> Samples:
    """Return the samples where a point's `store` has them: in memory, or in an LMDB store that is built in `folder`."""
    if store == "memory":
        return perturbations
    return StoredSamples(graph, perturbations, folder, store)


def names_of(graph: CellGraph) -> Sequence[str]:
    """Return the names of the nodes that can be deleted; their numbers, for a graph that has no names."""
    names = (graph.node_names or {}).get(graph.deleted_type)
    return names if names is not None else [str(node) for node in range(graph.num_nodes[graph.deleted_type])]


def _record(genes: Sequence[str], score: float) -> bytes:
    """Return a sample's record: experiment and reference, most of it the same in all samples."""
    environment = {
        "media": {"name": "YEPD", "state": "solid"},
        "temperature": {"value": 30.0, "unit": "Celsius"},
    }
    phenotype = {
        "graph_level": "hyperedge",
        "label_name": "gene_interaction",
        "label_statistic_name": "gene_interaction_p_value",
        "gene_interaction_p_value": None,
    }
    perturbations = [
        {"perturbation_type": "deletion", "systematic_gene_name": name, "perturbed_gene_name": name} for name in genes
    ]
    record = {
        "experiment": {
            "experiment_type": "gene interaction",
            "genotype": {"perturbations": perturbations},
            "environment": environment,
            "phenotype": {**phenotype, "gene_interaction": score},
        },
        "experiment_reference": {
            "experiment_reference_type": "gene interaction",
            "genome_reference": {"species": "Saccharomyces cerevisiae", "strain": "S288C"},
            "environment_reference": environment,
            "phenotype_reference": {**phenotype, "gene_interaction": 0.0},
        },
    }
    return json.dumps(record).encode()


def _decoded(value: memoryview) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(bytes(value))
    return record


def _of_records(records: Sequence[dict[str, Any]], places: dict[str, int]) -> Perturbations:
    nodes, length, scores = [], [], []
    for record in records:
        experiment = record["experiment"]
        genes = experiment["genotype"]["perturbations"]
        nodes += [places[gene["systematic_gene_name"]] for gene in genes]
        length.append(len(genes))
        scores.append(experiment["phenotype"]["gene_interaction"])
    joined = Deletions.joined(np.array(nodes, dtype=np.int64), np.array(length, dtype=np.int64))
    return Perturbations(joined, torch.tensor(scores, dtype=torch.float32))
