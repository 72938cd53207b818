"""Convolutions along the bipartite part: gene → reaction → metabolite → reaction → gene."""

from __future__ import annotations

from torch import Tensor, nn

from tclab.message_passing import View


class MetabolicConv(nn.Module):
    """Once around the metabolism, by means over what is left; what comes back is added to the deleted type's rows.

    Reactions hear from the nodes whose rule they need, metabolites from the reactions that turn them over
    (weighted by the signed stoichiometric coefficient), and back the same way.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, view: View, x: Tensor) -> Tensor:
        """Return [R, H] for rows of the deleted type `x: [R, H]`."""
        way = (("gpr", False), ("stoichiometry", False), ("stoichiometry", True), ("gpr", True))
        carried = x
        for linear, (relation, transpose) in zip(self.linears, way, strict=True):
            degree = view.degree(relation, transpose=transpose).clamp_min(1).to(x.dtype)
            mean = view.neighbour_sum(relation, carried, transpose=transpose) / degree.unsqueeze(-1)
            carried = linear(mean).relu()
        added: Tensor = x + self.norm(carried)
        return added
