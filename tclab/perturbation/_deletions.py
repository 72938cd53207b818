"""`Deletions`: which nodes each sample deletes, and which it removes with their dependants; `Perturbations`, which have
scores, too, synthetic ones, and how many steps an epoch of the published ones has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tclab.errors import InputError, check_whole
from tclab.graph import Network
from tclab.graph._cell_graph import CellGraph
from tclab.graph._csr import entries

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]

_LISTS = "expected a list of the nodes it deletes; [[3, 17], []] has two samples"
_NUMBERS = "expected the numbers of nodes (their positions among the names)"


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _node_ids(i: int, sample: object, num_nodes: int) -> list[int]:
    """Return the node ids of sample i; nothing is rounded, and a mask is not taken for ids.

    **Raises:** `InputError` for what is no list of distinct whole numbers from 0 to `num_nodes` - 1.
    """
    if isinstance(sample, (str, bytes, Mapping)) or not isinstance(sample, Iterable):
        raise InputError(f"sample {i} is {_short(sample)}, {_LISTS}")
    try:
        ids = torch.as_tensor(sample if isinstance(sample, (Tensor, np.ndarray)) else list(sample))
    except (TypeError, ValueError, RuntimeError):  # of names, of None, of a number that is too large
        raise InputError(f"sample {i} deletes {_short(sample)}, {_NUMBERS}") from None
    if ids.dim() != 1:
        raise InputError(f"sample {i} is {_short(sample)}, {_LISTS}")
    if ids.dtype == torch.bool:
        raise InputError(f"sample {i} is a mask, {_LISTS}; `mask.nonzero()` has the nodes of a mask")
    if len(ids) and (ids.is_floating_point() or ids.is_complex()):
        raise InputError(f"sample {i} deletes {_short(sample)}, {_NUMBERS}")
    nodes: list[int] = ids.tolist()
    for node in nodes:
        if not 0 <= node < num_nodes:
            raise InputError(f"sample {i} deletes node {node}, expected 0 to {num_nodes - 1}")
    if len(set(nodes)) < len(nodes):
        raise InputError(f"sample {i} deletes a node twice: {_short(nodes)}")
    return nodes


@dataclass(frozen=True, eq=False)
class Deletions:
    """The deleted nodes of B samples, end to end.

    **Arguments:**

    - `nodes`: [M] int64, sample after sample.
    - `ptr`: [B + 1] int64; sample `b` deletes `nodes[ptr[b]:ptr[b + 1]]`.
    - `most`: the largest number that any sample deletes, known on the host so that no device need be asked.
    """

    nodes: Tensor
    ptr: Tensor
    most: int

    @staticmethod
    def of(samples: Iterable[Sequence[int] | Tensor], *, num_nodes: int) -> Deletions:
        """Return the deletions of a list of samples, each a list of node ids.

        **Raises:** `InputError` for a sample that is no list, a node that is no whole number (a mask is none of node
        ids) or outside 0 … `num_nodes` - 1, or one that a sample names twice.
        """
        if isinstance(samples, (str, bytes, Mapping)) or not isinstance(samples, Iterable):
            raise InputError(f"the samples are {_short(samples)}; for each {_LISTS}")
        rows = [_node_ids(i, sample, num_nodes) for i, sample in enumerate(samples)]
        nodes = np.array([node for row in rows for node in row], dtype=np.int64)
        return Deletions.joined(nodes, np.array([len(row) for row in rows], dtype=np.int64))

    @staticmethod
    def nothing(size: int, *, device: torch.device | str = "cpu") -> Deletions:
        """Return the deletions of `size` samples that delete nothing, made on the device."""
        nodes = torch.zeros(0, dtype=torch.int64, device=device)
        return Deletions(nodes, torch.zeros(size + 1, dtype=torch.int64, device=device), 0)

    @staticmethod
    def joined(nodes: Int64s, length: Int64s) -> Deletions:
        """Return the deletions of samples whose nodes lie end to end, given how many each deletes."""
        ptr = np.zeros(len(length) + 1, dtype=np.int64)
        np.cumsum(length, out=ptr[1:])
        return Deletions(torch.from_numpy(nodes), torch.from_numpy(ptr), int(length.max(initial=0)))

    def __len__(self) -> int:
        return self.ptr.numel() - 1

    def __getitem__(self, i: int) -> Tensor:
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        return self.nodes[int(self.ptr[i]) : int(self.ptr[i + 1])]

    def take(self, indices: Sequence[int]) -> Deletions:
        """Return what some of the samples delete, in the order asked for; on the CPU.

        **Raises:** `IndexError` for a sample that is not there.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"samples {chosen.min()} to {chosen.max()} of {len(self)}")
        which, position = entries(self.ptr, torch.from_numpy(chosen))
        return Deletions.joined(self.nodes[position].numpy(), np.bincount(which.numpy(), minlength=len(chosen)))

    def samples(self) -> Tensor:
        """Return the sample that each deleted node belongs to, [M] int64, without asking the device."""
        i = torch.arange(len(self), device=self.ptr.device)
        return torch.repeat_interleave(i, self.ptr.diff(), output_size=self.nodes.numel())

    def rows(self, num_nodes: int) -> Tensor:
        """Return the row of each deleted node where every sample has a row for each of `num_nodes` nodes, [M] int64."""
        return self.samples() * num_nodes + self.nodes

    def to(self, device: torch.device | str) -> Deletions:
        """Return these deletions with their tensors on `device`."""
        return Deletions(self.nodes.to(device), self.ptr.to(device), self.most)


def removed_by(graph: CellGraph, deletions: Deletions) -> dict[str, Deletions]:
    """Return what each sample removes: the nodes it deletes and their dependants; node type → sorted ids, on the CPU.

    Dependants are closed over: whatever depends on a removed node is removed as well, through any number of relations
    that cascade, in whatever order the graph lists them.
    """
    size, num_nodes = len(deletions), graph.num_nodes
    cascading = [network for network in graph.relations.values() if network.cascades]
    # a removed node of a sample is one key, sample * nodes + node, so that one sort serves the whole batch
    samples = np.repeat(np.arange(size), np.diff(deletions.ptr.numpy()))
    keys: dict[str, list[Int64s]] = {kind: [] for kind in num_nodes}  # distinct within a node type
    pending = {graph.deleted_type: [samples * num_nodes[graph.deleted_type] + deletions.nodes.numpy()]}
    seen: dict[str, np.ndarray] = {}  # [B * N] bool of the types that are reached again, as few are
    while pending:
        kind, candidates = pending.popitem()
        fresh = np.unique(np.concatenate(candidates))
        if keys[kind]:
            if kind not in seen:
                seen[kind] = np.zeros(size * num_nodes[kind], dtype=np.bool_)
                seen[kind][keys[kind][0]] = True
            fresh = fresh[~seen[kind][fresh]]
            seen[kind][fresh] = True
        keys[kind].append(fresh)
        for network in cascading:
            if network.source == kind and len(fresh):  # a key's dependants are looked up once, so that cycles end
                pending.setdefault(network.target, []).append(_dependants(network, fresh))
    return {kind: _split(of_kind, size, num_nodes[kind]) for kind, of_kind in keys.items()}


def _split(keys: list[Int64s], size: int, num_nodes: int) -> Deletions:
    """Return what each of `size` samples removes of a node type, given keys sample * nodes + node, distinct."""
    if not keys:
        return Deletions.nothing(size)
    sample, node = np.divmod(keys[0] if len(keys) == 1 else np.sort(np.concatenate(keys)), max(num_nodes, 1))
    return Deletions.joined(node, np.bincount(sample, minlength=size))


def _dependants(network: Network, keys: Int64s) -> Int64s:
    """Return the key of each target of some sources, a target as often as it has such a source."""
    crow, col, _ = network.matrix(torch.float32).transposed  # each source's targets
    sample, node = np.divmod(keys, network.num_sources)
    which, position = entries(crow.cpu(), torch.from_numpy(node))
    return sample[which.numpy()] * network.num_targets + col.cpu()[position].numpy()


# ---- deletions with their scores


@dataclass(frozen=True, eq=False)
class Perturbations:
    """Samples: the nodes each deletes, and one score each.

    **Arguments:**

    - `deletions`: of S samples.
    - `scores`: [S] float32, the interaction scores.
    """

    deletions: Deletions
    scores: Tensor

    @staticmethod
    def synthetic(graph: CellGraph, number: int, *, deleted: int = 3, seed: int = 0) -> Perturbations:
        """Return `number` samples that each delete `deleted` distinct nodes, drawn evenly, with N(0, 0.1) scores.

        The same seed gives the same samples, and the first samples do not depend on `number`.

        **Raises:** `InputError` where the graph has fewer nodes than a sample should delete.
        """
        nodes = graph.num_nodes[graph.deleted_type]
        check_whole("the samples are", number)
        check_whole("the seed is", seed)
        check_whole(f"of {nodes} {graph.deleted_type} nodes a sample deletes", deleted, most=nodes)
        rows, scores = [], []
        for sample in range(number):
            rng = np.random.default_rng([seed, sample])
            rows.append(rng.choice(nodes, deleted, replace=False).tolist())
            scores.append(rng.normal(0.0, 0.1))
        return Perturbations(Deletions.of(rows, num_nodes=nodes), torch.tensor(scores, dtype=torch.float32))

    def __len__(self) -> int:
        return len(self.deletions)

    def read(self, indices: Sequence[int]) -> Perturbations:
        """Return some samples, in the order asked for."""
        scores = self.scores.numpy()[np.asarray(indices, dtype=np.int64)]
        return Perturbations(self.deletions.take(indices), torch.from_numpy(scores))


TRAINING_SAMPLES = 265_851  # the training split of the published trigenic dataset


def steps_per_epoch(batch_size: int, ranks: int, samples: int = TRAINING_SAMPLES) -> int:
    """Return how many steps an epoch has; the last batch may be smaller.

    **Raises:** `InputError` for a batch size or ranks below 1.
    """
    check_whole("batch_size is", batch_size, least=1)
    check_whole("ranks is", ranks, least=1)
    return math.ceil(samples / (batch_size * ranks))
