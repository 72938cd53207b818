"""yeast-GEM, the consensus model of yeast's metabolism, as the bipartite networks of its genes and reactions.

https://github.com/SysBioChalmers/yeast-GEM, `model/yeast-GEM.yml`, as RAVEN's `exportForGit` writes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tclab._source import check_nesting, opened
from tclab.errors import need
from tclab.graph import Network
from tclab.graph._cell_graph import Metabolism
from tclab.readers._genes import UNKNOWN_LIMIT, Genes, Lookup, Report
from tclab.readers._table import ReadError, quoted

YML_FILE = re.compile(r"yeast-GEM\.ya?ml(\.gz)?")

_MOST_GENES = 100_000  # in all branches of a rule; yeast-GEM's longest rule has some hundred


class Reaction(NamedTuple):
    """One reaction: the branches of its gene rule, whether it runs backward too, and its metabolites' coefficients.

    A stoichiometric coefficient is below 0 where the metabolite is consumed. A reaction is reversible where the lower
    bound of its flux is below 0. A reaction without a rule has one branch, which needs no gene.
    """

    name: str
    branches: Sequence[tuple[str, ...]]
    reversible: bool
    coefficients: Mapping[str, float]


def yeast_gem(
    path: str | Path, genes: Genes | Iterable[str] | None = None, *, unknown_limit: float = UNKNOWN_LIMIT
) -> Metabolism:
    """Return the relations `gpr` (gene → reaction, cascading) and `stoichiometry` (reaction → metabolite) of a
    `yeast-GEM.yml[.gz]`; it needs PyYAML.

    A reaction node is (reaction × branch of its rule × direction), the reverse direction where the lower
    bound is below 0, so that deleting a gene removes just the nodes whose branch needs it; a reaction without
    a rule has one branch that needs nothing. `gpr.report.node_names` names the reaction nodes,
    `stoichiometry.report.node_names` the metabolites.

    Parsing takes seconds: `CellGraph.save` keeps a graph that is made often.

    **Arguments:**

    - `path`: the file.
    - `genes`: the genes of the graph; None takes those of the rules.
    - `unknown_limit`: the share of gpr incidences that may name a gene that is not in `genes`; such a branch does not
      need the gene.

    **Raises:** `ReadError` for a file that is not YAML, or not such a model, with the reaction where one is at fault;
    for too many unknown genes.
    """
    need("yeast-GEM.yml", "data", "yaml")
    with opened(path, "a yeast-GEM model", ReadError) as content:
        reactions, metabolites = _model(content)
        in_rules = sorted({gene for reaction in reactions for branch in reaction.branches for gene in branch})
        return _relations(reactions, metabolites, Lookup(path, in_rules if genes is None else genes, unknown_limit))


def _model(content: bytes) -> tuple[list[Reaction], list[str]]:
    """Return a model's reactions and metabolites, in the file's order."""
    import yaml

    check_nesting(content)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml it takes a minute
    top = _entries(yaml.load(content.decode(), Loader=loader))
    metabolites = dict.fromkeys(str(_entries(each)["id"]) for each in top["metabolites"])
    reactions: dict[str, Reaction] = {}
    for each in top["reactions"]:
        fields = _entries(each)
        name = str(fields["id"])
        if name in reactions:  # raised here, since an alias can repeat a large reaction in a few bytes
            raise ValueError(f"reaction {quoted(name)} appears twice")
        try:
            coefficients = {str(key): float(value) for key, value in _entries(fields.get("metabolites")).items()}
            lower, rule = float(fields["lower_bound"]), branches(str(fields.get("gene_reaction_rule", "")))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"reaction {quoted(name)}: {type(error).__name__}: {error}") from error
        if not np.isfinite([lower, *coefficients.values()]).all():
            raise ValueError(f"reaction {quoted(name)}: a bound or coefficient is not a finite number")
        if strangers := sorted(coefficients.keys() - metabolites.keys()):
            raise ValueError(f"reaction {quoted(name)}: metabolite {quoted(strangers[0])} is not in the model's list")
        reactions[name] = Reaction(name, rule or [()], lower < 0, coefficients)
    return list(reactions.values()), list(metabolites)


def _entries(node: Any) -> dict[Any, Any]:
    """Return the entries of an ordered map, which PyYAML gives as a list of pairs, or of a map."""
    pairs = list(node.items() if isinstance(node, dict) else node or ())
    if len(entries := dict(pairs)) < len(pairs):
        raise ValueError(f"a key appears twice among {quoted(', '.join(map(str, entries)))}")
    return entries


def branches(rule: str) -> list[tuple[str, ...]]:
    """Return the branches of a rule's disjunctive normal form, each its genes in order; none for no rule.

    A reaction can run by any one branch, and a branch needs all its genes. `and` binds before `or`. A branch that needs
    all that another needs, and more, is kept: it is another enzyme.

    **Raises:** `ValueError` for what is no rule, or is too large.
    """

    def variable(word: re.Match[str]) -> str:  # names such as YAR002C-A are none of Python's
        return word[0].lower() if word[0].lower() in ("and", "or") else f"_{word[0].encode().hex()}"

    def expanded(node: ast.AST) -> set[frozenset[str]]:
        if isinstance(node, ast.Name):
            return {frozenset([bytes.fromhex(node.id[1:]).decode()])}
        if not isinstance(node, ast.BoolOp):
            raise ValueError(f"rule {quoted(rule)} is not made of genes, and, or, and brackets")
        found, *parts = map(expanded, node.values)
        for part in parts:
            if isinstance(node.op, ast.Or):
                found |= part
            elif len(found) * len(part) > _MOST_GENES:
                raise ValueError(f"rule {quoted(rule)} is too large: more than {_MOST_GENES:,} branches")
            else:
                found = {one | other for one in found for other in part}
        return found

    text = re.sub(r"[^\s()]+", variable, " ".join(rule.split()))
    if not text:
        return []
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError) as error:  # brackets that do not match, or nested too deeply
        raise ValueError(f"rule {quoted(rule)} cannot be read: {error}") from None
    return sorted(tuple(sorted(genes)) for genes in expanded(tree))


def _relations(reactions: Sequence[Reaction], metabolites: Sequence[str], lookup: Lookup) -> Metabolism:
    row_of = {name: i for i, name in enumerate(metabolites)}
    names: list[str] = []
    needs: list[tuple[int, int]] = []  # gene, reaction node
    turns: list[tuple[int, int, float]] = []  # reaction node, metabolite, coefficient
    for reaction in reactions:
        for i, branch in enumerate(reaction.branches):
            for direction, sign in (("forward", 1), ("reverse", -1))[: 1 + reaction.reversible]:
                needs += [(lookup.place(gene), len(names)) for gene in branch]
                turns += [(len(names), row_of[m], sign * value) for m, value in reaction.coefficients.items()]
                names.append(f"{reaction.name} {i} {direction}")
    known = [pair for pair in needs if pair[0] >= 0]
    lookup.check_lost(len(needs), lost := len(needs) - len(known), "gpr incidences")
    report = lookup.report(len(needs), len(known), {"unknown gene": lost}, node_names=tuple(names))
    turned = Report(report.path, len(turns), len(turns), node_names=tuple(metabolites))
    weight = torch.tensor([turn[2] for turn in turns], dtype=torch.float64)
    sizes = (len(lookup.genes), len(names), len(metabolites))
    return Metabolism(
        Network("gpr", _edges(known), "gene", "reaction", *sizes[:2], cascades=True, report=report),
        Network("stoichiometry", _edges(turns), "reaction", "metabolite", *sizes[1:], weight=weight, report=turned),
    )


def _edges(pairs: Sequence[tuple[Any, ...]]) -> torch.Tensor:
    """Return the first two of each tuple as an edge index, [2, E] int64."""
    return torch.tensor([pair[:2] for pair in pairs], dtype=torch.int64).reshape(-1, 2).T.contiguous()
