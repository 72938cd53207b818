"""The models by name, each with the loss that it is trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tclab.errors import InputError, unknown
from tclab.graph import CellGraph
from tclab.message_passing import View
from tclab.models.dango import Dango, DangoOutput, string_networks
from tclab.models.hetero_cell import HeteroCell
from tclab.models.losses import DangoLoss, log_cosh

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class ModelKind:
    """A model as a sweep knows it.

    **Arguments:**

    - `name`: unique.
    - `build`: graph, metabolism ("off", "carried", "used") → model; calling it with a view predicts, [B].
    - `loss`: graph on the device → a function of what `forward` gives and the targets, [B].
    - `forward`: model, view → what the loss is made from; calling the model unless given.
    - `reads_masked_graph`: False for a model that looks up deleted nodes and reads the wild type alone.
    - `default_networks`: which of a graph's networks it reads where none are asked for.
    """

    name: str
    build: Callable[[CellGraph, str], nn.Module]
    loss: Callable[[CellGraph], Loss]
    forward: Callable[[nn.Module, View], Any] = lambda model, view: model(view)
    reads_masked_graph: bool = True
    default_networks: Callable[[list[str]], list[str]] = list


def _dango_loss(graph: CellGraph) -> Loss:
    loss = DangoLoss(graph)
    # epoch 10: reconstruction and interaction weigh the same, as in nearly all of a published run
    return lambda output, targets: loss(output, targets, epoch=10)


def _dango_output(model: nn.Module, view: View) -> DangoOutput:
    assert isinstance(model, Dango)
    return model.output(view)


_MODELS = {
    kind.name: kind
    for kind in (
        ModelKind("hetero_cell", lambda g, m: HeteroCell.profiling(g, metabolism=m), lambda g: log_cosh),
        ModelKind(
            "hetero_cell_production", lambda g, m: HeteroCell.production(g, metabolism=m), lambda g: log_cosh
        ),
        ModelKind(
            "dango",
            lambda g, m: Dango(g.num_nodes[g.deleted_type], list(g.networks)),
            _dango_loss,
            forward=_dango_output,
            reads_masked_graph=False,
            default_networks=string_networks,
        ),
    )
}


def register(kind: ModelKind) -> ModelKind:
    """Make a model known by its name, to `Point`, the gate and the sweep.

    **Raises:** `InputError` where a model that comes with tclab has that name.
    """
    if kind.name in _OWN:
        raise InputError(f"{kind.name!r} is a model of tclab's own; give yours another name")
    _MODELS[kind.name] = kind
    return kind


_OWN = frozenset(_MODELS)


def names() -> list[str]:
    """Return the names of all models."""
    return list(_MODELS)


def get(name: str) -> ModelKind:
    """Return the model of a name.

    **Raises:** `InputError` with the nearest name where there is none.
    """
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    return _MODELS[name]
