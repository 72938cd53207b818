"""The models by name, each with the loss that it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from tclab.errors import InputError, check_known, unknown
from tclab.graph._cell_graph import CellGraph
from tclab.masking import Strategy
from tclab.message_passing import View
from tclab.models._dango import Dango, string_networks
from tclab.models._hetero_cell import HeteroCell, HeteroCellOnce
from tclab.models._losses import DangoLoss, MleWassSupCR, log_cosh


class Loss(Protocol):
    """A loss of a model's output and the targets, [B], in an epoch.

    A loss that also takes `stage`, the ledger's, may name an exchange with other ranks by it.

    A loss that is not a mean over samples has `over_batch = True` (a part that depends on no sample may be there all
    the same), and cannot be trained on in slices.
    """

    def __call__(self, output: Any, targets: Tensor, *, epoch: int = 0) -> Tensor:
        """Return the loss, []."""
        ...


@dataclass(frozen=True)
class ModelKind:
    """A model by name, with all that a sweep needs to train it.

    **Arguments:**

    - `name`: unique.
    - `build`: graph, metabolism ("off", "carried", "used") → model; calling it with a view predicts, [B].
    - `losses`: name → graph on the device → a new loss; the first is the default.
    - `forward`: model, view → what the loss takes; unless given, the model's output.
    - `reads_masked_graph`: False for a model that looks up deleted nodes and reads the wild type alone.
    - `default_networks`: a graph's networks → those it reads unless others are asked for.
    - `sizes`: which of "hidden" and "layers" `build` takes as keywords.
    """

    name: str
    build: Callable[..., nn.Module]
    losses: Mapping[str, Callable[[CellGraph], Loss]]
    forward: Callable[[nn.Module, View], Any] = lambda model, view: model(view)
    reads_masked_graph: bool = True
    default_networks: Callable[[list[str]], list[str]] = list
    sizes: tuple[str, ...] = ()

    def sized(self, **sizes: int | None) -> ModelKind:
        """Return this model in other sizes; a size that is `None`, or that it does not have, stays."""
        given = {name: value for name, value in sizes.items() if value is not None and name in self.sizes}
        return replace(self, build=partial(self.build, **given)) if given else self

    def served_by(self, strategy: type[Strategy]) -> bool:
        """Return whether the model can be trained with a strategy: one reads what the other makes."""
        return strategy.masks_graph == self.reads_masked_graph

    def loss(self, graph: CellGraph, name: str | None = None) -> Loss:
        """Return a new loss; the model's first unless named.

        **Raises:** `InputError` with the nearest name where the model has no such loss.
        """
        if name is not None and name not in self.losses:
            raise unknown(f"loss of {self.name}", name, self.losses)
        return self.losses[name or next(iter(self.losses))](graph)


# a step calls this, and not the model's own `forward`: losses take all outputs
def _output(model: nn.Module, view: View) -> Any:
    return model.output(view)  # type: ignore[operator]


_DANGO = ModelKind(
    "dango",
    lambda g, m, hidden=64: Dango(g.num_nodes[g.deleted_type], list(g.networks), width=hidden),
    {
        "dango": DangoLoss,  # LinearUntilUniform, as in the case study
        "dango_pre_then_post": partial(DangoLoss, schedule="PreThenPost"),
        "dango_linear_until_flipped": partial(DangoLoss, schedule="LinearUntilFlipped"),
    },
    forward=_output,
    reads_masked_graph=False,
    default_networks=string_networks,
    sizes=("hidden",),
)
_HETERO_CELL = ModelKind(
    "hetero_cell",
    HeteroCell.profiling,
    {
        "log_cosh": lambda graph: lambda output, targets, *, epoch=0: log_cosh(output.predictions, targets),
        "mle_wass_supcr": lambda graph: MleWassSupCR(),
        # the buffer holds its own rank's batches alone
        "mle_wass_supcr_no_gather": lambda graph: MleWassSupCR(gather_interval=None),
    },
    forward=_output,
    sizes=("hidden", "layers"),
)
_PRODUCTION = replace(_HETERO_CELL, name="hetero_cell_production", build=HeteroCell.production)
_ONCE = replace(_HETERO_CELL, name="hetero_cell_once", build=HeteroCellOnce.profiling, reads_masked_graph=False)
_MODELS = {kind.name: kind for kind in (_HETERO_CELL, _PRODUCTION, _ONCE, _DANGO)}
SHIPPED = frozenset(_MODELS)


def register(kind: ModelKind) -> ModelKind:
    """Register a model by its name, for `Point`, the equivalence check and the sweep.

    **Raises:** `InputError` where a model that comes with tclab has that name.
    """
    if kind.name in SHIPPED:
        raise InputError(f"{kind.name!r} is a model that comes with tclab; give yours another name")
    _MODELS[kind.name] = kind
    return kind


def names() -> list[str]:
    """Return the names of all models."""
    return list(_MODELS)


def get(name: str) -> ModelKind:
    """Return the model of a name.

    **Raises:** `InputError` with the nearest name where there is none.
    """
    check_known("model", _MODELS, name)
    return _MODELS[name]


def loss_names() -> list[str]:
    """Return the names of every model's losses, each once."""
    return list(dict.fromkeys(name for kind in _MODELS.values() for name in kind.losses))
