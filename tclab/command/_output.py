"""What a verb prints: a result as its class shows it, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative="", help="print JSON.")]


def show(result: Any, *, as_json: bool) -> None:
    print(json.dumps(json_value(result), allow_nan=False) if as_json else result)


def json_value(value: Any) -> Any:
    """Return a result as JSON can hold it: of a table a dict for each line, of a dataclass its public fields."""
    import numpy as np  # neither is loaded for the help
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        return [json_value(line) for line in value.to_dict("records")]
    if is_dataclass(value) and not isinstance(value, type):
        public = [one.name for one in fields(value) if not one.name.startswith("_")]
        return {name: json_value(getattr(value, name)) for name in public if not callable(getattr(value, name))}
    if isinstance(value, Mapping):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [json_value(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value != value or value in (float("inf"), float("-inf")):
        return None
    return value if isinstance(value, (bool, int, float, str)) else str(value)
