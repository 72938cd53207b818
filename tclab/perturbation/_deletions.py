"""`Deletions`: which nodes each sample deletes, and which it removes with their dependants."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tclab.errors import InputError
from tclab.graph._cell_graph import CellGraph

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]


def ranges(begin: Int64s, length: Int64s) -> Int64s:
    """Return the numbers `begin[i]` to `begin[i] + length[i] - 1` of every range, end to end, [Σ length] int64."""
    end = np.cumsum(length)
    return np.arange(end[-1] if len(end) else 0) + np.repeat(begin - end + length, length)


_LISTS = "expected a list of the nodes it deletes: [[3, 17], []]"


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _node_ids(number: int, sample: object) -> list[int]:
    """Return a sample's node ids; nothing is rounded, and a mask is not taken for ids.

    **Raises:** `InputError` for what is no list of whole numbers.
    """
    if isinstance(sample, (Tensor, np.ndarray)) and sample.ndim == 1:
        if "bool" in str(sample.dtype):
            raise InputError(f"sample {number} is a mask, {_LISTS}; `mask.nonzero()` has the nodes of a mask")
        sample = sample.tolist()
    if isinstance(sample, (str, bytes, Mapping, Tensor, np.ndarray)) or not isinstance(sample, Iterable):
        raise InputError(f"sample {number} is {_short(sample)}, {_LISTS}")
    ids = []
    for node in sample:
        try:
            if isinstance(node, (bool, np.bool_)) or (isinstance(node, Tensor) and node.dtype == torch.bool):
                raise TypeError
            ids.append(operator.index(node))
        except TypeError:
            raise InputError(
                f"sample {number} deletes {_short(node)}, expected the number of a node (its place among the names)"
            ) from None
    return ids


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
        rows = [_node_ids(number, sample) for number, sample in enumerate(samples)]
        for number, row in enumerate(rows):
            for node in row:
                if not 0 <= node < num_nodes:
                    raise InputError(f"sample {number} deletes node {_short(node)}, expected 0 to {num_nodes - 1}")
            if len(set(row)) < len(row):
                raise InputError(f"sample {number} deletes a node twice: {row}")
        nodes = np.array([node for row in rows for node in row], dtype=np.int64)
        return Deletions.joined(nodes, np.array([len(row) for row in rows], dtype=np.int64))

    @staticmethod
    def nothing(size: int, *, device: torch.device | str = "cpu") -> Deletions:
        """Return the deletions of `size` samples that delete nothing, made on the device."""
        nodes = torch.zeros(0, dtype=torch.int64, device=device)
        return Deletions(nodes, torch.zeros(size + 1, dtype=torch.int64, device=device), 0)

    def __len__(self) -> int:
        return self.ptr.numel() - 1

    def __getitem__(self, sample: int) -> Tensor:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        return self.nodes[int(self.ptr[sample]) : int(self.ptr[sample + 1])]

    def take(self, indices: Sequence[int]) -> Deletions:
        """Return what some of the samples delete, in the order asked for; on the CPU.

        **Raises:** `IndexError` for a sample that is not there.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"samples {chosen.min()} to {chosen.max()} of {len(self)}")
        ptr = self.ptr.numpy()
        begin = ptr[chosen]
        length = ptr[chosen + 1] - begin
        return Deletions.joined(self.nodes.numpy()[ranges(begin, length)], length)

    @staticmethod
    def joined(nodes: Int64s, length: Int64s) -> Deletions:
        """Return the deletions of samples whose nodes lie end to end, given how many each deletes."""
        ptr = np.zeros(len(length) + 1, dtype=np.int64)
        np.cumsum(length, out=ptr[1:])
        return Deletions(torch.from_numpy(nodes), torch.from_numpy(ptr), int(length.max(initial=0)))

    def fingerprint(self) -> str:
        """Return a hash of every sample's nodes, so that a store made for them can be checked."""
        digest = hashlib.sha256(self.ptr.cpu().numpy().tobytes())
        digest.update(self.nodes.cpu().numpy().tobytes())
        return digest.hexdigest()

    def samples(self) -> Tensor:
        """Return the sample that each deleted node belongs to, [M] int64, without asking the device."""
        number = torch.arange(len(self), device=self.ptr.device)
        return torch.repeat_interleave(number, self.ptr.diff(), output_size=self.nodes.numel())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Deletions:
        """Return these deletions with their tensors on `device`."""
        nodes, ptr = (tensor.to(device, non_blocking=non_blocking) for tensor in (self.nodes, self.ptr))
        return Deletions(nodes, ptr, self.most)

    def pin_memory(self) -> Deletions:
        """Return these deletions with their tensors in page-locked memory."""
        return Deletions(self.nodes.pin_memory(), self.ptr.pin_memory(), self.most)


def removed_by(graph: CellGraph, deletions: Deletions) -> dict[str, Deletions]:
    """Return what each sample removes: the nodes it deletes and their dependants; node type → sorted ids, on the CPU.

    Relations that cascade are followed in the graph's order.
    """
    size = len(deletions)
    # a removed node of a sample is one number, sample * nodes + node, so that one sort serves the whole batch
    owner = np.repeat(np.arange(size), np.diff(deletions.ptr.numpy()))
    numbers = graph.num_nodes
    removed = dict.fromkeys(numbers, np.empty(0, dtype=np.int64))
    removed[graph.deleted_type] = _distinct(owner * numbers[graph.deleted_type] + deletions.nodes.numpy())
    for network in graph.relations.values():
        if network.cascades:
            targets = network.targets_of()
            ptr, items = targets.ptr.numpy(), targets.items.numpy()
            sample, node = np.divmod(removed[network.source], numbers[network.source])
            length = ptr[node + 1] - ptr[node]
            found = np.repeat(sample, length) * numbers[network.target] + items[ranges(ptr[node], length)]
            removed[network.target] = _distinct(np.concatenate([removed[network.target], found]))
    joined = {}
    for kind, keys in removed.items():
        sample, node = np.divmod(keys, max(numbers[kind], 1))
        joined[kind] = Deletions.joined(node, np.bincount(sample, minlength=size))
    return joined


def _distinct(keys: Int64s) -> Int64s:
    """Return distinct keys in order; `np.unique` takes several times as long on a batch's few."""
    keys = np.sort(keys)
    again = keys[1:] == keys[:-1]
    return keys[np.append(True, ~again)] if again.any() else keys
