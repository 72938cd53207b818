"""Mutants: wrong strategies, verdicts and ledgers, made by rule, which must not go unseen.

The table of equality and the equivalence check must find each strategy, and a promise each verdict and ledger. A wrong
strategy breaks what a view gives in public, so that no mutant depends on how views are written.
"""

from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from clock import Clock
from hypothesis import Phase, given, settings
from synthetic_machine import pair_of
from test_equality import UNLIKE, cases, definition, failures
from verdicts import Attack

import tclab
from tclab import masking, models
from tclab.masking import Strategy
from tclab.message_passing import SharedView
from tclab.perturbation import Deletions
from tclab.timing import Ledger, _ledger, _verdict
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED
from tclab.training._equivalence import EquivalenceReference

# ---- the deletions of each sample, [B] lists of nodes, made wrong


def _off(sets, at):
    return [[] if place in at else one for place, one in enumerate(sets)]


_previous = []


def _stale(sets):
    """Return the sets of the batch before, if it was of this size."""
    _previous.append(sets)
    before = _previous[-2:][0]
    return before if len(before) == len(sets) else sets


DELETIONS = {
    "nothing is deleted": lambda sets: [[] for _ in sets],
    "sample 0 right and the rest not deleted": lambda sets: _off(sets, range(1, len(sets))),
    "sample 0 not deleted": lambda sets: _off(sets, [0]),
    "the last sample not deleted": lambda sets: _off(sets, [len(sets) - 1]),
    "the middle sample not deleted": lambda sets: _off(sets, [len(sets) // 2]),
    "the next sample's mask": lambda sets: sets[1:] + sets[:1],
    "the samples in reverse": lambda sets: sets[::-1],
    "two samples exchanged": lambda sets: sets if len(sets) < 2 else [sets[-1], *sets[1:-1], sets[0]],
    "every sample has the first one's mask": lambda sets: [sets[0]] * len(sets),
    "each sample's first node is kept": lambda sets: [one[1:] for one in sets],
    "each sample's last node is kept": lambda sets: [one[:-1] for one in sets],
    "only each sample's first node is deleted": lambda sets: [one[:1] for one in sets],
    "node 0 is deleted, too": lambda sets: [sorted({0, *one}) for one in sets],
    "an empty set deletes node 0": lambda sets: [one or [0] for one in sets],
    "nodes are off by one": lambda sets: [sorted({max(node - 1, 0) for node in one}) for one in sets],
    "the union of all sets in each": lambda sets: [sorted(set().union(*sets))] * len(sets),
    "the mask of the batch before": _stale,
    "a sample alone deletes nothing": lambda sets: sets if len(sets) > 1 else [[]],
    "wrong for more than 64 samples": lambda sets: sets if len(sets) <= 64 else [[] for _ in sets],
}

# ---- the neighbour sums, made wrong


class MutantView(SharedView):
    """A view to be made wrong, over a wild type that is right; `right` and `unmasked` are views as they should be."""

    def __init__(self, graph, removed):
        super().__init__(graph, removed)
        self.right = SharedView(graph, removed)
        self.unmasked = SharedView(graph, {kind: Deletions.nothing(len(own)) for kind, own in removed.items()})

    def with_wild_type(self):
        return [self.wild_type, self]


class Sums(MutantView):
    """Sums that a rule makes wrong: of the view, a relation's name, x, and `transpose` and `self_weight` by keyword."""

    rule = None
    layer = -1

    def neighbour_sum(self, relation, x, **how):
        self.layer += relation == next(iter(self.graph.networks))
        return type(self).rule(self, relation, x, **how)

    def neighbour_sums(self, relations, x, *, self_weights):
        pairs = zip(relations, self_weights, strict=True)
        return [self.neighbour_sum(name, x, self_weight=weight) for name, weight in pairs]


def _right(view, *given, **how):
    return view.right.neighbour_sum(*given, **how)


def _unmasked(view, *given, **how):
    return view.unmasked.neighbour_sum(*given, **how)


def _after(change, network=None):
    """Return the rule that changes the right sums, those of one network alone where its place is given."""

    def rule(view, name, *given, **how):
        summed = _right(view, name, *given, **how)
        return change(summed) if network is None or name == list(view.graph.networks)[network] else summed

    return rule


def _renamed(rename):
    """Return the rule that sums over another network: of the networks' names and one of them."""

    def rule(view, name, *given, **how):
        networks = list(view.graph.networks)
        return _right(view, rename(networks, name) if name in networks else name, *given, **how)

    return rule


def _in_layer(i):
    return lambda view, *given, **how: (_unmasked if view.layer == i else _right)(view, *given, **how)


def _self_weight(change):
    """Return the rule by which a row adds itself otherwise."""

    def rule(view, *given, self_weight=None, **how):
        return _right(view, *given, self_weight=None if self_weight is None else change(self_weight), **how)

    return rule


def _detached_at_hubs(view, name, *given, **how):
    """Leave out the gradient of the sums at nodes that five edges or more touch."""
    summed, networks = _right(view, name, *given, **how), view.graph.networks
    if name not in networks:
        return summed
    ends = [view.unmasked.degree(each, transpose=transpose) for each in networks for transpose in (False, True)]
    return torch.where((sum(ends) >= 5).unsqueeze(1), summed.detach(), summed)


def _other_way(view, name, x, transpose=False, **how):
    return _right(view, name, x, transpose=transpose != (name in view.graph.networks), **how)


def _target_alone(view, name, x, transpose=False, **how):
    relation = view.graph.relations[name]
    kept = view.keep[relation.source if transpose else relation.target]
    return _unmasked(view, name, x, transpose=transpose, **how).masked_fill(~kept.unsqueeze(1), 0.0)


def _one_edge(times):
    """Return the rule that adds the message of the first network's first edge `times` times."""

    def rule(view, name, x, **how):
        summed, network = _right(view, name, x, **how), view.graph.relations[name]
        if name != next(iter(view.graph.networks)) or network.num_edges == 0:
            return summed
        source, target = network.edge_index[:, 0].tolist()
        edge_weight = 1.0 if network.weight is None else network.weight[0].item()
        kept = view.keep[view.graph.deleted_type]
        nodes = view.lift(torch.arange(network.num_sources).double().unsqueeze(1)).flatten().long()
        into, out_of = (nodes == target).nonzero().flatten(), (nodes == source).nonzero().flatten()
        message = x[out_of] * (kept[out_of] & kept[into]).unsqueeze(1) * edge_weight * times
        return summed.index_add(0, into, message.to(summed.dtype))

    return rule


def _by_wild_degree(view, name, x, transpose=False, **how):
    summed = _right(view, name, x, transpose=transpose, **how)
    wild, own = (each.degree(name, transpose=transpose).unsqueeze(1).to(x.dtype) for each in (view.unmasked, view))
    return torch.where(wild > 0, summed * own / wild.clamp(min=1), summed)


SUMS = {
    "K forgotten in layer 1": _in_layer(0),
    "K forgotten in layer 2": _in_layer(1),
    "K forgotten in every layer": _unmasked,
    "target masked and source not": _target_alone,
    "the first network skipped": _after(torch.zeros_like, 0),
    "the last network skipped": _after(torch.zeros_like, -1),
    "two networks exchanged": _renamed(lambda names, name: names[-1 - names.index(name)]),
    "the first network for all": _renamed(lambda names, name: names[0]),
    "one edge lost": _one_edge(-1),
    "one edge counted twice": _one_edge(1),
    "edges the other way": _other_way,
    "a row does not add itself": _self_weight(lambda weight: None),
    "the gradient of ε missing": _self_weight(torch.Tensor.detach),
    "the value of ε ignored, with its gradient": _self_weight(lambda weight: 1 + weight - weight.detach()),
    "a self-weight as it is near 1 alone": _self_weight(lambda weight: (weight.square() + 1) / 2),
    "the gradient missing at nodes of five edges": _detached_at_hubs,
    "the gradient of the features missing": lambda view, name, x, **how: _right(view, name, x.detach(), **how),
    "the gradient of one network missing": _after(torch.Tensor.detach, -1),
    "twice the gradient": _after(lambda s: 2 * s - s.detach()),
    "sums a billionth too large": _after(lambda s: s * (1 + 1e-9)),
    "sums in float32": _after(lambda s: s.float().to(s.dtype)),
    "sums in bfloat16": _after(lambda s: s.bfloat16().to(s.dtype)),
    "noise of a millionth": _after(lambda s: s + 1e-6 * torch.randn_like(s)),
    "the last row lost": _after(lambda s: torch.cat([s[:-1], 0 * s[-1:]])),
    "the largest value clipped": _after(lambda s: s.clamp(max=0.9 * s.max().item())),
    "mean by the wild type's degree": _by_wild_degree,
    "wrong in bfloat16 alone": _after(lambda s: s * (1.3 if torch.is_autocast_enabled("cpu") else 1)),
}

# ---- the pool, the wild type and the lift, made wrong


def _others_wild_type(view):
    removed = {
        kind: Deletions.of([own[0].tolist()], num_nodes=view.graph.num_nodes[kind])
        for kind, own in view.removed.items()
    }
    return SharedView(view.graph, removed)


def _frozen_wild_type(view):
    nothing = {kind: Deletions.nothing(1) for kind in view.removed}
    return PARTS["the gradient of the embedding missing"](view.graph, nothing)


def _part(method, rule):
    """Return the view with one method by a rule: of the view, and what the method is given."""
    return type("Mutant", (MutantView,), {method: rule})


def _norm_without(parameter, value):
    """Return the rule by which a network's norm has a value instead of a parameter, whose gradient is right."""

    def convolve(view, relations, x, functions, self_weights):
        sums = view.neighbour_sums(relations, x, self_weights=self_weights)
        for function, summed in zip(functions, sums, strict=True):
            own = dict(function.named_parameters()).get(f"norm.{parameter}")
            changed = {} if own is None else {f"norm.{parameter}": value + own - own.detach()}
            yield torch.func.functional_call(function, changed, (summed,))

    return convolve


PARTS = {
    "another network's ε": _part(
        "neighbour_sums",
        lambda view, names, x, *, self_weights: view.right.neighbour_sums(names, x, self_weights=self_weights[::-1]),
    ),
    "a norm's bias ignored, with its gradient": _part("convolve", _norm_without("bias", 0.0)),
    "a norm's weight ignored, with its gradient": _part("convolve", _norm_without("weight", 1.0)),
    "pooled over deleted nodes, too": _part("pool", lambda view, *given: view.unmasked.pool(*given)),
    "the gradient of the pool's scores missing": _part("pool", lambda view, s, x: view.right.pool(s.detach(), x)),
    "pooled with equal scores": _part("pool", lambda view, s, x: view.right.pool(0 * s, x)),
    "pools exchanged": _part("pool", lambda view, *given: view.right.pool(*given).roll(1, 0)),
    "the gradient of the embedding missing": _part(
        "lift", lambda view, x, node_type=None: view.right.lift(x.detach(), node_type)
    ),
    "a deletion in the wild type": _part("wild_type", property(_others_wild_type)),
    "the gradient of the wild type missing": _part("wild_type", property(_frozen_wild_type)),
    "the wild type's degree": _part("degree", lambda view, *given, **how: view.unmasked.degree(*given, **how)),
}


def _deletes(rule):
    def view(strategy, batch):
        deleted = batch.deletions[strategy.graph.deleted_type]
        samples = rule([deleted[b].tolist() for b in range(batch.size)])
        nodes = strategy.graph.num_nodes[strategy.graph.deleted_type]
        return MutantView(strategy.graph, strategy.removed_by(Deletions.of(samples, num_nodes=nodes)))

    return view


def _is(kind):
    return lambda strategy, batch: kind(strategy.graph, batch.deletions)


# name → what makes the view, of the strategy and a batch
VIEWS = {
    **{name: _deletes(rule) for name, rule in DELETIONS.items()},
    **{name: _is(type("Mutant", (Sums,), {"rule": staticmethod(rule)})) for name, rule in SUMS.items()},
    **{name: _is(kind) for name, kind in PARTS.items()},
}


MUTANTS = {name: type("Mutant", (Strategy,), {"name": "mutant", "view": view}) for name, view in VIEWS.items()}

# ---- what is wrong where many rows are added up, or what a deletion removes removes more: no case of the table is such


def _added_one_by_one(values, index, rows):
    """Return the sums of values [n, H] that go to each row, [rows, H], rounded after each addition."""
    return torch.stack([values.new_zeros(rows).index_add(0, index, column) for column in values.unbind(1)], dim=1)


def _sums_in_bfloat16(view, name, x, self_weight=None, **how):
    if not torch.is_autocast_enabled("cpu"):
        return _right(view, name, x, self_weight=self_weight, **how)
    network, x = view.graph.relations[name], x.bfloat16()
    first = network.num_sources * torch.arange(view.size).unsqueeze(1)  # row of each sample
    source, target = ((first + ends).flatten() for ends in network.edge_index)
    kept = x * view.keep[network.source].unsqueeze(1)
    return _added_one_by_one(kept[source], target, len(x)) + self_weight.to(x.dtype) * kept


def _pool_in_bfloat16(view, scores, values):
    if not torch.is_autocast_enabled("cpu"):
        return view.right.pool(scores, values)
    kept = view.keep[view.graph.deleted_type].unsqueeze(1)
    weights = (scores - scores.max()).exp().bfloat16() * kept
    sample = torch.arange(view.size).repeat_interleave(len(values) // view.size)
    total = _added_one_by_one(weights, sample, view.size)
    return _added_one_by_one(weights * values.bfloat16(), sample, view.size) / total


def _pool_of_exp(view, scores, values):
    """Pool by a softmax that does not subtract the highest score first."""
    weights = scores.exp() * view.keep[view.graph.deleted_type].unsqueeze(1)
    sample = torch.arange(view.size).repeat_interleave(len(values) // view.size)
    weighed = torch.cat([weights * values, weights], dim=1)
    sums = weighed.new_zeros(view.size, weighed.size(1)).index_add(0, sample, weighed)
    return (sums[:, :-1] / sums[:, -1:]).to(values.dtype)


def _one_level(strategy, deletions):
    """Return what each sample removes: what it deletes, and what that removes itself, but nothing further."""
    kind = strategy.graph.deleted_type
    deleted = [set(deletions[b].tolist()) for b in range(len(deletions))]
    removed = {name: [set(one) if name == kind else set() for one in deleted] for name in strategy.graph.num_nodes}
    for network in strategy.graph.relations.values():
        if network.cascades and network.source == kind:
            for source, target in network.edge_index.t().tolist():
                for one, goes in zip(deleted, removed[network.target], strict=True):
                    goes |= {target} if source in one else set()
    return {
        name: Deletions.of([sorted(one) for one in each], num_nodes=strategy.graph.num_nodes[name])
        for name, each in removed.items()
    }


LARGE = {
    "sums over neighbours added up in bfloat16": {
        "view": _is(type("M", (Sums,), {"rule": staticmethod(_sums_in_bfloat16)}))
    },
    "a pool added up in bfloat16": {"view": _is(_part("pool", _pool_in_bfloat16))},
    "a pool whose weights overflow": {"view": _is(_part("pool", _pool_of_exp))},
    "only 128 nodes of a sample are deleted": {"view": _deletes(lambda sets: [one[:128] for one in sets])},
    "one level of removals": {"view": _is(MutantView), "removed_by": _one_level},
}
LARGE = {name: type("Mutant", (Strategy,), {"name": "mutant", **methods}) for name, methods in LARGE.items()}


@cache
def table():
    """Return the cases of the table of equality that mutants are shown to: a few that are drawn, and the fixed ones."""
    drawn = []

    @settings(max_examples=12, phases=[Phase.generate], derandomize=True, deadline=None)
    @given(case=cases())
    def draw(case):
        drawn.append(case)

    draw()
    return [*drawn, *((*case, {"layers": 2}) for case in UNLIKE.values())]


@cache
def defined(i, column):
    return definition(*table()[i], column)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_strategy_is_found_by_the_table_of_equality(mutant):
    assert any(
        failures(*case, {mutant: MUTANTS[mutant]}, column, defined(i, column))
        for column in ("fp64", "bf16")
        for i, case in enumerate(table())
    )


def _graphs():
    """Return graphs that the check is made on: a cell's networks, a cell, and three unlike a cell."""
    cell = tclab.CellGraph.synthetic(0.02, seed=1)
    generator = torch.Generator().manual_seed(0)
    roads = torch.randint(0, 2000, (2, 3000), generator=generator)
    spokes = torch.arange(1, 3001)
    hub = torch.stack([spokes, torch.zeros_like(spokes)])
    nodes = torch.arange(2000)
    edges = {"ring": torch.stack([nodes, nodes.roll(-1)]), "chain": torch.tensor([[998, 999], [999, 1000]])}
    ring = tclab.CellGraph.from_edges(edges, num_nodes=2000)
    chain = {"chain": replace(ring.relations["chain"], cascades=True)}
    return {
        "the networks of a cell": cell.without_metabolism().select(["physical", "tflink"]),
        "a cell with reactions, whose sums are over degrees": cell,
        "roads": tclab.CellGraph.from_edges({"roads": roads}, num_nodes=2000),
        "a hub of 3,000 neighbours": tclab.CellGraph.from_edges({"knows": hub}, num_nodes=6000),
        "a ring with a chain of removals": ring.with_relations({**ring.relations, **chain}),
    }


@pytest.fixture(scope="module")
def references():
    """What the check compares with, by the name of the graph."""
    kind = models.get("hetero_cell").sized(hidden=8, layers=2)

    def build(part):
        return kind.build(part, "used" if "gpr" in part.relations else "off").eval()

    return {name: EquivalenceReference(build, graph) for name, graph in _graphs().items()}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_strategy_fails_the_equivalence_check(references, mutant):
    masking.register(MUTANTS[mutant])
    # also in fp64 and fp32
    assert not all(one.compare("mutant", dtype="bfloat16").passed for one in references.values())


@pytest.mark.parametrize(
    ("mutant", "graph"),
    [
        ("the value of ε ignored, with its gradient", "the networks of a cell"),
        ("a self-weight as it is near 1 alone", "the networks of a cell"),
        ("a norm's bias ignored, with its gradient", "the networks of a cell"),
        ("a norm's weight ignored, with its gradient", "the networks of a cell"),
        ("the gradient missing at nodes of five edges", "roads"),
        ("a sample alone deletes nothing", "the networks of a cell"),
    ],
)
def test_the_part_of_a_graph_that_the_check_runs_on_shows_it(references, mutant, graph):
    masking.register(MUTANTS[mutant])
    assert references[graph].compare("mutant").fp64_error > 1e-6


@pytest.mark.parametrize(
    ("mutant", "graph"),
    [
        ("sums over neighbours added up in bfloat16", "a hub of 3,000 neighbours"),
        ("a pool added up in bfloat16", "a hub of 3,000 neighbours"),
        ("a pool whose weights overflow", "the networks of a cell"),
        ("only 128 nodes of a sample are deleted", "roads"),
        ("one level of removals", "a ring with a chain of removals"),
    ],
)
def test_a_strategy_that_is_wrong_at_a_hub_alone_fails_the_check_there(references, mutant, graph):
    masking.register(LARGE[mutant])
    result = references[graph].compare("mutant", dtype="bfloat16")
    assert not result.passed
    assert result.where.startswith("at a hub of "), result.where


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["subgraph", "edge_mask", "node_mask", "delta"])
def test_a_right_strategy_passes_on_all_of_these_graphs(references, strategy):
    results = {name: one.compare(strategy, dtype="bfloat16") for name, one in references.items()}
    assert {name: result.where for name, result in results.items() if not result.passed} == {}


# ---- verdicts

STILL = Attack("still", ratio=0.5)
CELL = (80, 0.0)  # rounds, noise of a block


def _during(samples):
    """Make `a` slower while the race goes on: its first third shows nothing."""
    for sample in samples:
        sample["seconds"] *= 1 + 0.4 * (sample["arm"] == "a") * (sample["spent_seconds"] > 20)
    return samples


def _of_ratio(ratio, **more):
    return pair_of(Attack("still", ratio=ratio, **more).samples(0, *CELL))


def _states(share, slower):
    """Return the samples of equal arms, of which one is slower in a share of each part's rounds."""
    samples = Attack("still").samples(0, *CELL)
    for sample in samples:
        sample["seconds"] *= slower if sample["arm"] == "a" and sample["round"] % 10 < 10 * share else 1.0
    return samples


def _with_order(samples):
    """Make the first block of a round slow, and leave one order out of the last turn."""
    kept = [sample["round"] for sample in samples if (sample["turn"], sample["position"], sample["arm"]) == (7, 0, "b")]
    slow = [{**one, "seconds": one["seconds"] * (1 + 0.2 * (one["position"] == 0))} for one in samples]
    return [one for one in slow if one["round"] not in kept]


def kept_promises():
    """Return promise → whether the verdicts as they are now keep it."""
    half, lucky = _of_ratio(0.5), Attack("lucky", processes=4, luck=0.03).pairs(1, 80, 0.001)[0]
    one_part = STILL.samples(0, *CELL)
    for sample in one_part:
        sample["seconds"] *= 2.0 if sample["arm"] == "a" and sample["turn"] == 3 else 1.0
    ends, position = (pair_of(made(Attack("still").samples(0, *CELL))) for made in (_during, _with_order))
    return {
        "half the time is FASTER": half.verdict == FASTER and half.flipped().verdict == SLOWER,
        "0.6 % is SAME": _of_ratio(0.994).verdict == SAME,
        "3 % is not SAME": _of_ratio(0.97).verdict != SAME,
        "a part that disagrees is UNDECIDED": pair_of(one_part).verdict == UNDECIDED,
        "what comes during the race is UNDECIDED": ends.verdict == UNDECIDED,
        "two states have a centre in between": pair_of(_states(0.6, 1.1)).ratio == pytest.approx(1.05, abs=0.003),
        "a few wild rounds are no centre": pair_of(_states(0.2, 1.3)).verdict == SAME,
        "the position in a round is no difference": position.verdict == SAME,
        "processes that differ ask for more of them": lucky.differ and lucky.needs_seconds is None,
        "few rounds decide nothing": pair_of(STILL.samples(0, *CELL)[:28]).ratio is None,
        "more comparisons take more parts": _verdict.parts_for(66) >= 11,
    }  # fmt: skip


_decide = _verdict.decide


def _decides(rule):
    return _verdict, "decide", rule


def _undecided_is_same(*given):
    verdict = _decide(*given)
    return SAME if verdict == UNDECIDED else verdict


VERDICTS = {
    "sign flipped": _decides(lambda low, high, margin: _decide(1 / high, 1 / low, margin)),
    "margin ignored": _decides(lambda low, high, margin: _decide(low, high, 1e-9)),
    "margin doubled": _decides(lambda low, high, margin: _decide(low, high, 2 * margin)),
    "UNDECIDED is SAME": _decides(_undecided_is_same),
    "parts ignored": (_verdict, "_parts", lambda rounds, least: [np.arange(len(rounds))] * least),
    "the mean is the centre": (_verdict, "_centre", lambda values: float(np.mean(values))),
    "the median is the centre": (_verdict, "_centre", lambda values: float(np.median(values))),
    "orders ignored": (_verdict, "_OF_AN_ORDER", 10**9),
    "luck ignored": (_verdict, "_with_needs", lambda pair, *given: pair),
    "four rounds are enough": (_verdict, "parts_for", lambda comparisons: 4),
    "comparisons ignored": (_verdict, "parts_for", lambda comparisons: 8),
}


def test_the_verdicts_keep_their_promises():
    assert all(kept_promises().values()), kept_promises()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", VERDICTS)
def test_a_wrong_verdict_breaks_a_promise(mutant, monkeypatch):
    monkeypatch.setattr(*VERDICTS[mutant])
    assert not all(kept_promises().values())


# ---- ledgers

TIMES = {"data_wait": 0.003, "forward": 0.002, "mask": 0.005, "backward": 0.007, "other": 0.001}


def _batches(clock):
    for number in range(4):
        clock.work(TIMES["data_wait"] * (1 + number))  # no two steps are alike
        yield number
    clock.work(1.0)  # no batch comes of it, and no step


def kept_by_the_ledger(monkeypatch, drift=1.0):
    """Return promise → whether the ledger as it is now keeps it, of a loop on a made-up clock."""
    clock = Clock().set_in(monkeypatch)
    monkeypatch.setattr(_ledger, "raw_clock_ns", lambda: round(drift * clock.nanoseconds()))
    with Ledger() as ledger:
        for number in ledger.steps(_batches(clock)):
            with ledger.stage("forward"):
                clock.work(TIMES["forward"] * (1 + number))
                with ledger.stage("mask"):
                    clock.work(TIMES["mask"] * (1 + number))
            clock.work(TIMES["other"] * (1 + number))
            if number != 2:
                with ledger.stage("backward"):
                    clock.work(TIMES["backward"] * (1 + number))
    expected = {stage: [seconds * (1 + n) for n in range(4)] for stage, seconds in TIMES.items()}
    del expected["backward"][2]  # missing, and not 0
    found = ledger.seconds()
    steps = found.pop("step")
    failed = Ledger()
    for _ in failed.steps(range(1)):
        with suppress(ValueError), failed.stage("forward"):
            raise ValueError
    return {
        "each stage has its time in its step": found == {stage: pytest.approx(t) for stage, t in expected.items()},
        "a step is its stages": steps == pytest.approx([0.018, 0.036, 0.054 - 0.021, 0.072]),
        "stages add up to another clock": ledger.adds_up(),
        "what fails in a stage is no step": len(failed) == 0,
    }


_rows, _begin, _end, _leave = Ledger.rows, Ledger.next_step, Ledger.end, _ledger._Stage.__exit__
_seconds, _step_rows = _ledger.stage_seconds, _ledger.step_rows


def _with_seconds(change):
    def seconds(*given):
        found = _seconds(*given)
        change(found)
        return found

    return _ledger, "stage_seconds", seconds


def _twice(found):
    found["backward"] = 2 * found.get("backward", 0.0)


def _in_both(found):
    found["forward"] = found.get("forward", 0.0) + found.get("mask", 0.0)


def _in_other(found):
    found["other"] = found.get("other", 0.0) + found.pop("data_wait", 0.0)


def _with_steps(change):
    def rows(ledger):
        kept, ledger._steps = ledger._steps, change(ledger._steps)
        yield from _rows(ledger)
        ledger._steps = kept

    return Ledger, "rows", rows


def _zero(line, number, seconds):
    return ((*row[:3], row[3] or 0.0) for row in _step_rows(line, number, seconds))


def _step_that_begins_late(ledger):
    _begin(ledger)
    stage, begin, event = ledger._cuts[-1]
    ledger._cuts[-1] = (stage, begin + 1_000_000, event)


LEDGERS = {
    "a stage lost": _with_seconds(lambda found: found.pop("backward", None)),
    "a stage counted twice": _with_seconds(_twice),
    "an inner stage counted in the outer one, too": _with_seconds(_in_both),
    "the time between stages lost": _with_seconds(lambda found: found.pop("other", None)),
    "the wait for a batch is no stage": _with_seconds(_in_other),
    "a stage that goes on after its end": (
        _ledger._Stage,
        "__exit__",
        lambda stage, *_: stage.ledger._open.remove(stage),
    ),
    "stages on the step before": _with_steps(lambda steps: steps[1:] + steps[:1]),
    "the last step dropped": _with_steps(lambda steps: steps[:-1]),
    "the time between steps lost": (Ledger, "next_step", _step_that_begins_late),
    "the end of the loop is a step": (Ledger, "end", lambda ledger, *, keep=False: _end(ledger, keep=True)),
    "missing is 0": (_ledger, "step_rows", _zero),
    "a stage that failed is a whole one": (_ledger._Stage, "__exit__", lambda stage, *_: _leave(stage, None)),
}


def test_the_ledger_keeps_its_promises(monkeypatch):
    kept = kept_by_the_ledger(monkeypatch)
    assert all(kept.values()), kept


@pytest.mark.parametrize("mutant", LEDGERS)
def test_a_wrong_ledger_breaks_a_promise(mutant, monkeypatch):
    monkeypatch.setattr(*LEDGERS[mutant])
    assert not all(kept_by_the_ledger(monkeypatch).values())


@pytest.mark.parametrize("drift", [0.95, 0.97, 1.03, 1.05])
def test_a_ledger_whose_clock_drifts_does_not_add_up(drift, monkeypatch):
    kept = kept_by_the_ledger(monkeypatch, drift)
    assert [promise for promise, kept in kept.items() if not kept] == ["stages add up to another clock"]
