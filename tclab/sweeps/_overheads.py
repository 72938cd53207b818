"""What the overheads of the case study's training code do, so that each can be measured; off unless a point has them.

They change a step's model and its loss, which do not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tclab.masking import Batch
from tclab.message_passing import View
from tclab.message_passing.kernels._row_ops import add_rows
from tclab.models import Dango, DangoLoss, HeteroCell
from tclab.models._dango import DangoOutput
from tclab.models._layers import HyperSAGNN
from tclab.models._losses import Stage
from tclab.perturbation import Deletions
from tclab.training._step import Step


def add_overheads(step: Step, overheads: Iterable[str]) -> None:
    """Add overheads that apply to a step's model, by name, in place: first to the model, then to the loss.

    What reads or prints figures does so after each loss, before its backward, in a stage of its own, `log`.
    """
    apply_to_model(step.model, overheads)
    if "dense_targets" in overheads:
        assert isinstance(step.loss, DangoLoss)
        _replace_method(step.loss, "reconstruction", partial(dense_reconstruction, step.loss))
    lean = step._loss

    def slow(output: Any, batch: Batch, stage: Stage) -> Tensor:
        loss = lean(output, batch, stage)
        if "item_logging" in overheads:
            with stage("log"):
                read_one_by_one(loss.detach(), getattr(output, "predictions", output).detach(), batch.target)
        if "print_loss" in overheads:
            with stage("log"):
                print(f"Loss: {loss.detach()}")
        if "zero_params_loss" in overheads:  # of each that has no gradient yet: all, unless gradients accumulate
            for parameter in (one for one in step.model.parameters() if one.grad is None):
                loss = loss + 0.0 * parameter.sum()
        return loss

    _replace_method(step, "_loss", slow)


def read_one_by_one(loss: Tensor, predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Return 15 figures of a step, each read with its own `.item()`, so that the host waits for each.

    **Arguments:**

    - `loss`: [], detached. `predictions`, `targets`: [B].
    """
    predictions = predictions.to(targets.dtype)
    error = predictions - targets
    figures = {"loss": loss, "mse": error.square().mean(), "mae": error.abs().mean()}
    for name, values in (("prediction", predictions), ("target", targets), ("error", error)):
        figures |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
        figures[f"{name}_rms"] = values.square().mean().sqrt()
    return {name: value.item() for name, value in figures.items()}


# ---- of a loss


def dense_reconstruction_loss(reconstruction: Tensor, edge_index: Tensor, zero_weight: float) -> Tensor:
    """Return the same as `ReconstructionLoss`, of a dense reconstruction, [N, N], and a dense target made here."""
    target = torch.zeros_like(reconstruction)
    target[edge_index[0], edge_index[1]] = 1
    squared = (reconstruction - target).square()
    on_edges = (squared * (target != 0)).sum()
    elsewhere = (squared * (target == 0)).sum()
    return (on_edges + zero_weight * elsewhere) / reconstruction.numel()


def dense_reconstruction(loss: DangoLoss, reconstructions: Mapping[str, Tensor]) -> Tensor:
    """Return a loss's `reconstruction` of dense reconstructions, with a dense 0/1 target of each network made here."""
    losses = [(loss.of_networks[name], dense) for name, dense in reconstructions.items()]
    parts = [dense_reconstruction_loss(dense, of.network.edge_index, of.zero_weight) for of, dense in losses]
    return torch.stack(parts).mean()


# ---- of a model


class BatchWideLayerNorm(nn.Module):
    """PyG's `LayerNorm` in its default mode, over all features of all rows at once.

    A prediction then depends on the other samples of its batch, and on which rows a strategy keeps. It shares the
    parameters of the `torch.nn.LayerNorm` that it replaces, under the same names.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """Return [R, H] for `x: [R, H]`."""
        x = x - x.mean()
        return x / (x.std(unbiased=False) + self.eps) * self.weight + self.bias


class BatchQuadraticHyperSAGNN(nn.Module):
    """The scores of `HyperSAGNN` by attention among all M members of the batch.

    Members of other sets are masked away, so work and memory grow with the square of the batch. It shares the
    parameters of the `HyperSAGNN` that it replaces, under the same names.
    """

    def __init__(self, lean: HyperSAGNN) -> None:
        super().__init__()
        self.attention, self.static, self.score = lean.attention, lean.static, lean.score

    def forward(self, x: Tensor, sets: Deletions) -> Tensor:
        """Return the scores of B sets, [B]; see `HyperSAGNN.forward`."""
        owner = sets.samples()
        apart = ~torch.eye(x.size(0), dtype=torch.bool, device=x.device)
        others = ((owner.unsqueeze(1) == owner) & apart).unsqueeze(0)  # [1, M, M]
        dynamic = x.unsqueeze(0)
        for layer in self.attention:
            dynamic = layer(dynamic, others)
        score = self.score((dynamic.squeeze(0) - torch.relu(self.static(x))).square()).squeeze(-1)
        total = add_rows(score, owner, len(sets))
        return total / sets.ptr.diff().clamp_min(1)


def apply_to_model(model: nn.Module, overheads: Iterable[str]) -> None:
    """Apply to a model, in place, the overheads that concern it; its parameters keep their names and order."""
    for name in overheads:
        if name in _OF_THE_MODEL:
            _OF_THE_MODEL[name](model)


def _raise_on_nan(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if torch.isnan(output).any():
        raise RuntimeError(f"NaN in the output of {type(module).__name__}")


def _isnan_checks(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    layers = [part for layer in model.layers for part in (layer.aggregation, layer.metabolic)]
    heads = [model.gate, model.transform, model.head, model.local_head, model.mixer]
    for module in (model.preprocessor, *layers, *heads):
        if isinstance(module, nn.Module):  # a part that the model does not have is None
            module.register_forward_hook(_raise_on_nan)


def _replace_layers(kind: type[nn.Module], replacement: Callable[[Any], nn.Module], model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                setattr(module, name, replacement(child))


def _preprocessor_per_sample(model: nn.Module) -> None:
    assert isinstance(model, HeteroCell)
    preprocessor, embedding = model.preprocessor, model.embedding
    # not `begin`, which would carry fewer rows
    _replace_method(model, "rows", lambda view: preprocessor(view.lift(embedding.weight)))


def _second_forward(model: nn.Module) -> None:
    assert isinstance(model, Dango)
    output: Callable[[View], DangoOutput] = model.output
    _replace_method(model, "output", lambda view: DangoOutput(output(view).predictions, output(view).reconstructions))


def _replace_method(of: Any, method: str, replacement: Callable[..., Any]) -> None:
    assert hasattr(of, method), method  # what nobody calls would change nothing, in silence
    setattr(of, method, replacement)  # an instance attribute shadows the class's method


_OF_THE_MODEL: dict[str, Callable[[nn.Module], None]] = {
    "isnan_checks": _isnan_checks,
    "batch_wide_layer_norm": partial(_replace_layers, nn.LayerNorm, BatchWideLayerNorm),
    "wild_type_apart": lambda model: _replace_method(model, "views", lambda view: [view.wild_type, view]),
    "preprocessor_per_sample": _preprocessor_per_sample,
    "quadratic_attention": partial(_replace_layers, HyperSAGNN, BatchQuadraticHyperSAGNN),
    "second_forward": _second_forward,
    # what the loss then compares with dense targets
    "dense_targets": lambda model: _replace_method(model, "reconstruct", lambda head, x: head(x)),
}
