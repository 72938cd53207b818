"""BiGG's models as JSON (cobra's JSON schema, version 1), `<model>.json[.gz]`.

http://bigg.ucsd.edu/data_access
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from tclab.readers._metabolic_model import MetabolicModel, Reaction, first_repeated
from tclab.readers._old_source import LIMIT_BYTES, bad_file, not_utf8, quoted, read_bytes

BIGG_FILE = re.compile(r"i[A-Z]{2,}\w*\.json(\.gz)?")


def bigg_json(path: str | Path, *, limit_bytes: int = LIMIT_BYTES) -> MetabolicModel:
    """Return the model of a BiGG JSON file.

    **Raises:** `ReadError` with the line for a file that is not JSON; naming the metabolite or reaction if the JSON is
    no BiGG model.
    """
    content = read_bytes(path, limit_bytes=limit_bytes)
    try:
        document = json.loads(content)
    except UnicodeDecodeError as error:
        raise not_utf8(path, content, error) from None
    except json.JSONDecodeError as error:
        raise bad_file(path, f"is not JSON: {error.msg}", line=error.lineno) from None
    except (RecursionError, ValueError) as error:
        raise bad_file(path, f"is not JSON that can be read: {error}") from None
    top = document if isinstance(document, dict) else {}
    metabolites, reactions = top.get("metabolites"), top.get("reactions")
    if not isinstance(metabolites, list) or not isinstance(reactions, list):
        raise bad_file(path, "has no lists called metabolites and reactions, expected a BiGG model")
    names = tuple(_field(path, each, "id", str, "metabolite") for each in metabolites)
    if twice := first_repeated(names):
        raise bad_file(path, f"metabolite {quoted(twice)} appears twice")
    return MetabolicModel(str(path), tuple(_reaction(path, each) for each in reactions), names)


def _reaction(path: str | Path, reaction: Any) -> Reaction:
    name = _field(path, reaction, "id", str, "reaction")
    what = f"reaction {name}"
    coefficients = _field(path, reaction, "metabolites", dict, what)
    return Reaction(
        name,
        _field(path, reaction, "gene_reaction_rule", str, what),
        _number(path, _field(path, reaction, "lower_bound", (int, float), what), what),
        _number(path, _field(path, reaction, "upper_bound", (int, float), what), what),
        {metabolite: _number(path, value, what) for metabolite, value in coefficients.items()},
    )


_EXPECTED = {str: "a text", dict: "an object", (int, float): "a number"}


def _field(path: str | Path, entry: Any, name: str, kind: Any, what: str) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise bad_file(path, f"{what} has {name} {quoted(value)}, expected {_EXPECTED[kind]}")
    return value


def _number(path: str | Path, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise bad_file(path, f"{what} has {quoted(value)}, expected a finite number")
    return float(value)
