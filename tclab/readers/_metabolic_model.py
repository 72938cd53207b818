"""Metabolic models: reactions, their bipartite networks, and a cache of parsed files."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tclab._io import atomic_write, cache_folder
from tclab.errors import InputError
from tclab.graph import Network
from tclab.graph._cell_graph import Metabolism
from tclab.readers._gene_names import UNKNOWN_LIMIT, Genes, Lookup
from tclab.readers._old_source import bad_file, quoted, read_bytes
from tclab.readers._read_report import Report

MOST_WORK = 3_000_000  # gene names copied while a rule is expanded: a second or so
MOST_BRANCHES = 10_000  # yeast-GEM's longest rule has a few dozen; ands of ors grow without end

Branches = frozenset[frozenset[str]]

_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_OPERATORS = {"and": "and", "&": "and", "&&": "and", "or": "or", "|": "or", "||": "or"}


def branches(rule: str) -> list[tuple[str, ...]]:
    """Return the branches of a rule's disjunctive normal form, each its genes in order; none for no rule.

    A reaction can run by any one branch, and a branch needs all its genes. `and` binds before `or`; `AND`,
    `&`, `&&`, `OR`, `|` and `||` say the same. A branch that needs all that another needs, and more, is kept:
    it is another enzyme.

    **Raises:** `InputError` for unbalanced brackets, a gene or an operator in the wrong place, more than
    `MOST_BRANCHES` branches, or a rule that would take more than `MOST_WORK`.
    """
    values: list[Branches] = []
    # operators and open brackets: Dijkstra's shunting yard, so that depth costs nothing
    waiting: list[str] = []
    before = "("
    work = 0  # gene names copied so far

    def apply(operator: str) -> None:
        nonlocal work
        right, left = values.pop(), values.pop()
        if operator == "or":
            work += len(left) + len(right)
        else:
            work += len(right) * sum(map(len, left)) + len(left) * sum(map(len, right))
        if work > MOST_WORK or (operator == "and" and len(left) * len(right) > MOST_BRANCHES):
            raise InputError(f"rule {quoted(rule)} is too large: more than {MOST_BRANCHES:,} branches, or nearly")
        both = (one | other for one in left for other in right)
        values.append(left | right if operator == "or" else frozenset(both))

    for token in _TOKEN.findall(rule):
        word = _OPERATORS.get(token.lower(), token)
        needs_value = before in ("(", "and", "or")
        if needs_value != (word not in ("and", "or", ")")):
            expected = "a gene or an opening bracket" if needs_value else "and, or, or a closing bracket"
            raise InputError(f"{quoted(token)} after {quoted(before)} in rule {quoted(rule)}, expected {expected}")
        if word == "(":
            waiting.append(word)
        elif word == ")":
            while waiting and waiting[-1] != "(":
                apply(waiting.pop())
            if not waiting:
                raise InputError(f"a bracket is closed that was never opened in rule {quoted(rule)}")
            waiting.pop()
        elif word in ("and", "or"):
            while waiting and (waiting[-1] == "and" or waiting[-1] == word):
                apply(waiting.pop())
            waiting.append(word)
        else:
            values.append(frozenset([frozenset([token])]))
        before = word
    if not values and not waiting:
        return []
    if before in ("(", "and", "or"):
        raise InputError(f"rule {quoted(rule)} ends after {quoted(before)}, expected a gene")
    while waiting:
        if waiting[-1] == "(":
            raise InputError(f"a bracket is opened that is never closed in rule {quoted(rule)}")
        apply(waiting.pop())
    return sorted(tuple(sorted(genes)) for genes in values[0])


@dataclass(frozen=True)
class Reaction:
    """One reaction: its gene rule, its flux bounds, and its metabolites' signed stoichiometric coefficients.

    A coefficient is below 0 where the metabolite is consumed; bounds are in mmol / gDW / h.
    """

    name: str
    rule: str
    lower: float
    upper: float
    coefficients: Mapping[str, float]


@dataclass(frozen=True)
class MetabolicModel:
    """The reactions and metabolites of a model, in the file's order."""

    path: str
    reactions: tuple[Reaction, ...]
    metabolites: tuple[str, ...]

    @property
    def genes(self) -> tuple[str, ...]:
        """The genes in the rules, sorted."""
        return tuple(sorted({g for r in self.reactions for branch in branches(r.rule) for g in branch}))


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first of the names that come more than once, or None."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def metabolism_of(
    model: MetabolicModel,
    genes: Genes | Iterable[str] | None = None,
    *,
    unknown_limit: float = UNKNOWN_LIMIT,
) -> Metabolism:
    """Return the relations `gpr` (gene → reaction, cascading) and `stoichiometry` (reaction → metabolite).

    A reaction node is (reaction × branch of its rule × direction), the reverse direction where the lower
    bound is below 0, so that deleting a gene removes just the nodes whose branch needs it; a reaction without
    a rule has one branch that needs nothing. A gene id with an underscore (`YER060W_A`, as BiGG writes it) is
    also looked up with a hyphen. `gpr.report.node_names` names the reaction nodes,
    `stoichiometry.report.node_names` the metabolites.

    **Arguments:**

    - `model`: reactions with their rules, bounds and metabolites.
    - `genes`: the genes of the graph; None takes those of the rules.
    - `unknown_limit`: the share of gpr incidences that may name a gene that is not in `genes`; such a branch does not
      need the gene.

    **Raises:** `ReadError` with the reaction for an invalid rule, or a metabolite that the model does not have; for
    too many unknown genes.
    """
    lookup = Lookup(Genes.of(model.genes if genes is None else genes), respell=lambda name: name.replace("_", "-"))
    metabolite_of = {name: place for place, name in enumerate(model.metabolites)}
    names: list[str] = []
    gpr: list[tuple[int, int]] = []
    turned_over: list[tuple[int, int]] = []
    weights: list[float] = []
    lost = 0
    for reaction in model.reactions:
        try:
            rule = branches(reaction.rule) or [()]
        except InputError as error:
            raise bad_file(model.path, f"reaction {reaction.name}: {error}") from None
        for number, branch in enumerate(rule):
            places = [lookup.place(gene) for gene in branch]
            for direction, sign in (("forward", 1), ("reverse", -1)):
                if sign < 0 and reaction.lower >= 0:
                    continue
                node = len(names)
                names.append(f"{reaction.name} {number} {direction}")
                gpr += [(place, node) for place in places if place >= 0]
                lost += sum(place < 0 for place in places)
                for metabolite, coefficient in reaction.coefficients.items():
                    if metabolite not in metabolite_of:
                        why = f"reaction {reaction.name} has no known metabolite {metabolite!r}"
                        raise bad_file(model.path, why)
                    turned_over.append((node, metabolite_of[metabolite]))
                    weights.append(sign * coefficient)
    rows = len(gpr) + lost
    lookup.check_lost(model.path, rows, lost, limit=unknown_limit, what="gpr incidences")
    report = lookup.report(model.path, rows, len(gpr), {"unknown gene": lost}, node_names=tuple(names))
    edges = torch.tensor(gpr, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    pairs = torch.tensor(turned_over, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return Metabolism(
        Network("gpr", edges, "gene", "reaction", len(lookup.genes), len(names), cascades=True, report=report),
        Network(
            "stoichiometry",
            pairs,
            "reaction",
            "metabolite",
            len(names),
            len(model.metabolites),
            weight=torch.tensor(weights, dtype=torch.float64),
            report=Report(model.path, len(weights), len(weights), node_names=model.metabolites),
        ),
    )


def cached(
    path: str | Path,
    read: Callable[[bytes], MetabolicModel],
    *,
    reader: str,
    cache: bool | str | Path,
    limit_bytes: int,
) -> MetabolicModel:
    """Return `read` of a file's bytes, cached in a folder under the reader's name and version and the bytes' hash.

    **Arguments:**

    - `cache`: the folder; True for `TCLAB_CACHE`, or `tclab` in `$XDG_CACHE_HOME` or `~/.cache`, False for
      none. A folder that cannot be written is no error: the file is parsed again next time.
    """
    content = read_bytes(path, limit_bytes=limit_bytes)
    if cache is False:
        return read(content)
    folder = cache_folder() if cache is True else Path(cache)
    cache_file = folder / f"{reader}-{hashlib.sha256(content).hexdigest()}.json"
    try:
        stored = json.loads(cache_file.read_text())
        reactions = tuple(Reaction(**reaction) for reaction in stored["reactions"])
        return MetabolicModel(str(path), reactions, tuple(stored["metabolites"]))
    except (OSError, ValueError, KeyError, TypeError):
        model = read(content)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(cache_file, json.dumps(asdict(model)))
    return model
