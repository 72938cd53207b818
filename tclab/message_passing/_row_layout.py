"""The order of rows, (group of samples, node, sample), of samples that lie side by side over one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 4  # samples side by side on a CPU: at 64 features a group of 6,607 nodes is 7 MB, which stays in its cache


@dataclass(frozen=True)
class Order:
    """Rows of B samples of N nodes: group after group, in a group node after node, of a node its samples.

    A sparse product gathers whole rows from all over a group. All samples in one group is one wide product, which
    a GPU wants; few in a group keep what is gathered from in a processor's cache, however many samples there are.
    """

    size: int  # samples, B
    group: int  # how many lie side by side; the last group has what is left

    @staticmethod
    def on(device: torch.device, size: int) -> Order:
        """Return the order that is fastest on a device."""
        return Order(size, GROUP if device.type == "cpu" else max(size, 1))

    @property
    def widths(self) -> list[int]:
        """How many samples each group has."""
        return [min(self.group, self.size - first) for first in range(0, self.size, self.group)]

    def rows(self, nodes: Tensor, samples: Tensor, number: int) -> Tensor:
        """Return the row of each (node, sample), of `number` nodes, [n] int64."""
        first = samples.div(self.group, rounding_mode="floor") * self.group
        width = (self.size - first).clamp_max(self.group)
        return first * number + nodes * width + samples - first

    def lift(self, x: Tensor) -> Tensor:
        """Return [N * B, H] with each node's row of `x: [N, H]` for all its samples."""
        parts = [x.unsqueeze(1).expand(-1, width, -1).reshape(-1, x.size(1)) for width in self.widths]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def grids(self, x: Tensor) -> list[Tensor]:
        """Return each group's rows of `x: [N * B, ...]`, [N, samples, ...]; nothing is copied."""
        number = x.size(0) // self.size
        widths = self.widths
        parts = x.split([number * width for width in widths])
        return [part.view(number, width, *x.shape[1:]) for part, width in zip(parts, widths, strict=True)]
