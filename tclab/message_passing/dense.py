"""The view that shares one dense matrix among all samples: K·A·(K·X) as an ordinary product of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tclab.message_passing.shared import SharedView


class DenseView(SharedView):
    """A `SharedView` whose sums are dense products.

    A dense product does 1 / density times the work of a sparse one, at a rate that tensor cores make up for once
    a few edges in a thousand are there. Zeros and ones are exact in every dtype. It holds N² numbers a relation.
    """

    def _sums(
        self, relations: Sequence[str], x: Tensor, transpose: bool, weights: Tensor | None
    ) -> Sequence[Tensor]:
        device = x.device.type
        # autocast would cast each matrix in every product
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        sums, masked, masked_for = [], x, ""
        for place, name in enumerate(relations):
            network = self._relation(name)
            source, target = network.source, network.target
            if transpose:
                source, target = target, source
            if masked_for != source:
                masked, masked_for = x.index_fill(0, self._rows[source], 0.0), source
            matrix = network.dense(dtype=dtype)
            wide = masked.reshape(-1, self.size * x.size(1))
            summed = (matrix.t() if transpose else matrix) @ wide.to(dtype)
            if weights is not None:
                summed = torch.addcmul(summed, wide.to(dtype), weights[place].to(dtype))
            sums.append(summed.view(-1, x.size(1)).index_fill(0, self._rows[target], 0.0))
        return sums
