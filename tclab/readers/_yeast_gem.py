"""yeast-GEM, the consensus model of yeast's metabolism: `yeast-GEM.yml` and `yeast-GEM.txt`.

https://github.com/SysBioChalmers/yeast-GEM, folder `model`, as RAVEN's `exportForGit` writes it.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

from tclab.errors import InputError
from tclab.readers._metabolic_model import MetabolicModel, Reaction, cached, first_repeated
from tclab.readers._old_source import LIMIT_BYTES, bad_file, not_utf8, quoted
from tclab.readers._table import Table

YML_FILE = re.compile(r"yeast-GEM\.ya?ml(\.gz)?")
TXT_FILE = re.compile(r"yeast-GEM\.txt(\.gz)?")

_TXT_COLUMNS = ("Rxn name", "Formula", "Gene-reaction association", "LB", "UB")
_ARROW = re.compile(r"(?<!\S)(<=>|=>|<=)(?!\S)")
_TERM = re.compile(r"(?:(?P<coefficient>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s+)?(?P<metabolite>\S.*\[\w+\])")


def yeast_gem(path: str | Path, *, cache: bool | str | Path = True, limit_bytes: int = LIMIT_BYTES) -> MetabolicModel:
    """Return the model of a `yeast-GEM.yml[.gz]`, which needs PyYAML, or of a `yeast-GEM.txt[.gz]`.

    The YAML is ordered maps of metabolites and reactions: a reaction without `gene_reaction_rule` has no rule, and
    metabolites have their ids (`s_0001`). The text is a table between tabs, one reaction in each row: metabolites are
    named with their compartment (`ATP[c]`), as in the formulas.

    **Arguments:**

    - `path`: a name that ends with `.txt` or `.txt.gz` is a table's.
    - `cache`: of a YAML file; see `tclab.readers._metabolic_model.cached`.
    - `limit_bytes`: how much the file may unpack to.

    **Raises:** `ReadError` with the line for a file that is not YAML, or not such a model; for a wrong number of
    columns; with the reaction for an invalid formula.
    """
    if Path(path).name.removesuffix(".gz").endswith(".txt"):
        return _from_table(path, limit_bytes)
    return cached(path, partial(_from_yaml, path), reader="yeast_gem_yml-1", cache=cache, limit_bytes=limit_bytes)


def _from_yaml(path: str | Path, content: bytes) -> MetabolicModel:
    try:
        import yaml
    except ImportError:
        raise InputError("yeast-GEM.yml needs PyYAML: pip install 'tclab[data]'") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml it takes a minute
    try:
        document = yaml.compose(content.decode(), Loader=loader)
    except UnicodeDecodeError as error:
        raise not_utf8(path, content, error) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or error
        raise bad_file(path, f"is not YAML: {why}", line=mark.line + 1 if mark else None) from None
    top = _entries(path, document)
    for name in ("metabolites", "reactions"):
        if name not in top:
            raise bad_file(path, f"has no {name}, expected a yeast-GEM model")
    listed = _items(path, top["metabolites"])
    metabolites = tuple(_text(path, _entries(path, node), "id", node) for node in listed)
    if twice := first_repeated(metabolites):
        raise bad_file(path, f"metabolite {quoted(twice)} appears twice")
    known, reactions = set(metabolites), {}
    for node in _items(path, top["reactions"]):
        reaction = _reaction(path, node, known)
        if reaction.name in reactions:  # raised here, since an alias can repeat a large reaction in a few bytes
            raise _fault(path, node, f"reaction {quoted(reaction.name)} appears twice")
        reactions[reaction.name] = reaction
    return MetabolicModel(str(path), tuple(reactions.values()), metabolites)


def _reaction(path: str | Path, node: Any, metabolites: set[str]) -> Reaction:
    entries = _entries(path, node)
    coefficients: dict[str, float] = {}
    if "metabolites" in entries:
        for name, value in _entries(path, entries["metabolites"]).items():
            if name not in metabolites:
                raise _fault(path, value, f"metabolite {quoted(name)} is not in the model's list")
            coefficients[name] = _number(path, value, f"coefficient of {name}")
    return Reaction(
        _text(path, entries, "id", node),
        _text(path, entries, "gene_reaction_rule", node) if "gene_reaction_rule" in entries else "",
        _number(path, entries.get("lower_bound", node), "lower_bound"),
        _number(path, entries.get("upper_bound", node), "upper_bound"),
        coefficients,
    )


def _fault(path: str | Path, node: Any, why: str) -> Exception:
    return bad_file(path, why, line=node.start_mark.line + 1)


def _items(path: str | Path, node: Any) -> list[Any]:
    if node.id != "sequence":
        raise _fault(path, node, "expected a list")
    return list(node.value)


def _entries(path: str | Path, node: Any) -> dict[str, Any]:
    """Return the entries of a map, or of an ordered map, which YAML writes as a list of maps."""
    if node is None:
        raise bad_file(path, "is empty, expected a yeast-GEM model")
    maps = node.value if node.id == "sequence" else [node]
    entries: dict[str, Any] = {}
    for each in maps:
        if each.id != "mapping":
            raise _fault(path, each, "expected a map, or an ordered map")
        for key, value in each.value:
            if key.id != "scalar":
                raise _fault(path, key, "expected a word before the colon")
            if key.value in entries:
                raise _fault(path, key, f"{quoted(key.value)} appears twice")
            entries[key.value] = value
    return entries


def _text(path: str | Path, entries: dict[str, Any], name: str, node: Any) -> str:
    found = entries.get(name)
    if found is None or found.id != "scalar":
        raise _fault(path, found or node, f"expected {name} with a word")
    return str(found.value)


def _number(path: str | Path, node: Any, name: str) -> float:
    try:
        value = float(node.value) if node.id == "scalar" else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        found = quoted(node.value) if node.id == "scalar" else "missing"
        raise _fault(path, node, f"{name} is {found}, expected a finite number")
    return value


def _from_table(path: str | Path, limit_bytes: int) -> MetabolicModel:
    reactions: list[Reaction] = []
    metabolites: dict[str, None] = {}
    for name, formula, rule, *bounds in Table(path, limit_bytes=limit_bytes).rows(*_TXT_COLUMNS):
        try:
            lower, upper = (float(bound) for bound in bounds)
            if not (math.isfinite(lower) and math.isfinite(upper)):
                raise ValueError
        except ValueError:
            raise bad_file(path, f"reaction {name}: the bounds {bounds} are not two numbers") from None
        coefficients = _formula(path, name, formula)
        metabolites.update(dict.fromkeys(coefficients))
        reactions.append(Reaction(name, rule.strip(), lower, upper, coefficients))
    return MetabolicModel(str(path), tuple(reactions), tuple(metabolites))


def _formula(path: str | Path, reaction: str, formula: str) -> dict[str, float]:
    """Return the signed coefficients of `2 A[c] + B[c] <=> C[m]`; either side may be empty."""
    arrow = _ARROW.search(formula)
    if not arrow:
        raise bad_file(path, f"reaction {reaction}: no => or <=> in {quoted(formula)}")
    coefficients: dict[str, float] = {}
    for sign, side in ((-1.0, formula[: arrow.start()]), (1.0, formula[arrow.end() :])):
        for term in filter(None, re.split(r"(?<=\])\s+\+\s+", side.strip())):
            found = _TERM.fullmatch(term.strip())
            if not found:
                raise bad_file(path, f"reaction {reaction}: {quoted(term)}, expected one like 2 ATP[c]")
            name = found["metabolite"]
            coefficients[name] = coefficients.get(name, 0.0) + sign * float(found["coefficient"] or 1)
    return coefficients
