"""What is right by definition: a view that loops over samples and edges, and a step of a model on any view."""

import tempfile
from pathlib import Path

import drawn
import torch

from tclab.masking import Strategy
from tclab.message_passing import View
from tclab.models import ModelKind
from tclab.perturbation import Deletions, Perturbations
from tclab.training._loading import Batches
from tclab.training._step import Step

# the error that is allowed in a dtype, besides the loop's own in it: of the largest value in fp64, else of the norm
TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "bfloat16": 0.05}


class LoopView(View):
    """Copies made one by one: which edge counts is found for each sample and edge alone.

    Rows are sample after sample, [B * N, H], deleted ones among them.
    """

    def __init__(self, graph, samples):
        removed, kind = [drawn.removed_one_by_one(graph, sample) for sample in samples], graph.deleted_type
        super().__init__(graph, Deletions.of([each[kind] for each in removed], num_nodes=graph.num_nodes[kind]))
        self._removed = [{kind: set(nodes.tolist()) for kind, nodes in one.items()} for one in removed]

    @property
    def keep(self):
        return {
            kind: torch.tensor([node not in removed[kind] for removed in self._removed for node in range(nodes)])
            for kind, nodes in self.graph.num_nodes.items()
        }

    @property
    def wild_type(self):
        return LoopView(self.graph, [[]])

    def lift(self, x, node_type=None):
        return torch.cat([x] * self.size)

    def first(self, x):
        return x[: self.graph.num_nodes[self.graph.deleted_type]]

    def _messages(self, relation, transpose):
        """Return the kept edges of all samples: [M] source rows, [M] target rows, [M] weights, and target rows R."""
        network = self.graph.relations[relation]
        (source, target), ends = (network.source, network.target), network.edge_index.t().tolist()
        weights = [1.0] * len(ends) if network.weight is None else network.weight.tolist()
        if transpose:
            source, target, ends = target, source, [pair[::-1] for pair in ends]
        sources, targets = self.graph.num_nodes[source], self.graph.num_nodes[target]
        kept = [
            (b * sources + s, b * targets + t, weight)
            for b, removed in enumerate(self._removed)
            for (s, t), weight in zip(ends, weights, strict=True)
            if s not in removed[source] and t not in removed[target]
        ]
        rows = torch.tensor([row[:2] for row in kept], dtype=torch.int64).reshape(-1, 2)
        return *rows.t(), torch.tensor([row[2] for row in kept], dtype=torch.float64), self.size * targets

    def neighbour_sum(self, relation, x, *, transpose=False, self_weight=None):
        sources, targets, weights, rows = self._messages(relation, transpose)
        message = x[sources] * weights.to(x.dtype).unsqueeze(1)
        summed = x.new_zeros(rows, x.size(1)).index_add(0, targets, message)
        return summed if self_weight is None else summed + self_weight.to(x.dtype) * x

    def degree(self, relation, *, transpose=False):
        _, targets, _, rows = self._messages(relation, transpose)
        return torch.bincount(targets, minlength=rows).float()

    def pool(self, scores, values):
        nodes = self.graph.num_nodes[self.graph.deleted_type]
        each = zip(
            scores.split(nodes), values.split(nodes), self.keep[self.graph.deleted_type].split(nodes), strict=True
        )
        return torch.stack([(s[kept].softmax(0) * v[kept]).sum(0) for s, v, kept in each])


class Loop(Strategy):
    """The strategy of a `LoopView` over samples that it is given as lists, whatever a batch says."""

    name = "loop"

    def __init__(self, graph, samples):
        super().__init__(graph)
        self.samples = samples

    def view(self, batch):
        return LoopView(self.graph, self.samples)


def outcome(strategy, samples, build, *, micro_batch=None, **options):
    """Return the predictions [B] and each parameter's gradient of one training step, whose loss weights each sample.

    **Arguments:**

    - `strategy`: one on a graph. `samples`: for each the nodes that it deletes.
    - `build`: graph → model; its weights are then drawn, for the same model always the same.
    - `micro_batch`: samples in a slice. `options`: of `Step`.
    """
    predictions, gradients = [], []

    def drawn_weights(graph, metabolism):
        model = build(graph)
        with torch.no_grad():  # no parameter is exactly 0 or 1, as some are at the beginning
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def forward(model, view):
        predicted = model(view)
        predictions.append(predicted.detach())
        return predicted

    def loss(predicted, targets, *, epoch=0):
        return (predicted * targets).mean()

    def update():  # instead of the optimizer's
        gradients.extend(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in step.model.parameters())

    kind = ModelKind("drawn", drawn_weights, {"weighted": lambda graph: loss}, forward=forward)
    step = Step(kind, strategy, clip=None, **options)
    scores = torch.linspace(-1.0, 2.0, len(samples)) + 0.1
    graph = strategy.graph
    perturbations = Perturbations(Deletions.of(samples, num_nodes=graph.num_nodes[graph.deleted_type]), scores)
    with tempfile.TemporaryDirectory() as folder:
        if strategy.stores:
            strategy.prepare(perturbations, Path(folder) / "store")
        rotated = [*range(1, len(samples)), 0]  # what a batch before leaves behind would show
        strategy.view(strategy.batch(perturbations.read(rotated), rotated)).close()
        (loaded,) = Batches(strategy, perturbations, len(samples), micro_batch=micro_batch)
        step.run(step.transfer(loaded.batch), update=update)
        strategy.close()
    return torch.cat(predictions), gradients


def error_of(found, expected, dtype):
    """Return how far an outcome in a dtype is from one in fp64, of predictions and gradients the worst, or NaN.

    In fp64 by each tensor's largest value, else by the norms of the predictions and of the whole gradient.
    """
    if dtype == "float64":
        sides = zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True)
        noise = 1e-3 * max(gradient.abs().max().item() for gradient in expected[1])  # of rounding, and no gradient
        sizes = [1e-12, *[max(1e-12, noise)] * len(found[1])]
        errors = [
            (ours.double() - theirs).abs().max() / theirs.abs().max().clamp(min=size)
            for (ours, theirs), size in zip(sides, sizes, strict=True)
        ]
    else:
        flat = ((side[0].double(), torch.cat([g.flatten().double() for g in side[1]])) for side in (found, expected))
        errors = [(ours - theirs).norm() / theirs.norm().clamp(min=1e-12) for ours, theirs in zip(*flat, strict=True)]
    return torch.stack(errors).max().item()
