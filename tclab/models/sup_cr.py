"""Supervised contrastive regression: embeddings of samples with near scores are drawn together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def sup_cr(z: Tensor, targets: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return the contrastive loss of every pair, without asking the device anything.

    For an anchor i and another j it is `-log(exp(s_ij) / Σ exp(s_ik))` over those k (not i) whose target is at
    least as far from i's as j's is; s is the cosine similarity over the temperature. Zha et al., "Supervised
    contrastive regression", eq. 3. Each anchor's others are sorted by distance, so that the sums are running
    log-sums from the far end; equal distances share the sum that begins at the first of them.

    **Arguments:**

    - `z`: [M, H], the embeddings.
    - `targets`: [M], the scores.
    - `temperature`: what similarities are divided by.

    **Returns:** [], the mean over all pairs; 0 where there is no pair.
    """
    if z.size(0) < 2:
        return z.sum() * 0.0
    unit = F.normalize(z, dim=-1)
    own = torch.eye(z.size(0), dtype=torch.bool, device=z.device)
    distance = (targets.unsqueeze(1) - targets).abs().masked_fill(own, -1.0)
    ordered, order = distance.sort(dim=1)
    ordered, order = ordered[:, 1:].contiguous(), order[:, 1:]  # itself came first
    similarity = (unit @ unit.t() / temperature).gather(1, order)
    at_least_as_far = similarity.flip(1).logcumsumexp(1).flip(1)
    first_of_equals = torch.searchsorted(ordered, ordered)
    return (at_least_as_far.gather(1, first_of_equals) - similarity).mean()
