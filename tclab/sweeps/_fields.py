"""What the fields of a point are made of: declarations, whose annotations are checks, and options for a library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import product
from numbers import Integral, Real
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from tclab._display import bullets
from tclab.errors import InputError, about, check_known, shown, unknown

_MOST = 2**63 - 1  # a column of whole numbers has 64 bits
AtLeast0 = Annotated[int, Meta(ge=0, le=_MOST, description="a whole number of at least 0")]
AtLeast1 = Annotated[int, Meta(ge=1, le=_MOST, description="a whole number of at least 1")]

_IN_WORDS = {bool: "True or False", NoneType: "None", str: "a text", float: "a number", int: "a whole number"}


def checked(name: str, value: Any, annotation: Any) -> Any:
    """Return a value as an annotation has it: a whole number for a float as a float, a number of numpy's as Python's.

    **Raises:** `InputError` that names the value, what was expected and, of names, the nearest.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        value = int(value) if isinstance(value, Integral) else float(value)
    try:
        return msgspec.convert(value, annotation)
    except (msgspec.ValidationError, ValueError, TypeError):
        known = [choice for one in _parts(annotation) if get_origin(one) is Literal for choice in get_args(one)]
        if known and isinstance(value, str):
            raise unknown(name, value, known) from None
        expected = ", or ".join(map(_in_words, _parts(annotation)))
        raise InputError(f"{name} is {shown(value)}, expected {expected}", name=name) from None


def _parts(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation by itself."""
    return list(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else [annotation]


def _in_words(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return str(get_args(annotation)[1].description)
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    return _IN_WORDS[annotation]


def text_value(value: Any) -> Any:
    """Return what a text means that was typed, as papermill's `-p` reads it: a number, true, false, none, or itself.

    What is no text is returned as it is.
    """
    if not isinstance(value, str):
        return value
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


# ---- declarations


@dataclass(frozen=True)
class Declaration:
    """All that the library knows of one field of a point."""

    name: str
    default: Any
    annotation: Any  # the check, unless `check` is given
    meaning: str  # as the docstring says it; for the help of the command, too
    grid: str  # its name as a parameter of `grid`: "strategies"
    unit: str | None = None  # of a number: "samples", "processes", "MiB"
    # name, value → the value as it is kept; for what no annotation says
    check: Callable[[str, Any], Any] | None = None
    # in a comparison; an "amount" says how much was run, a "repetition" tells runs of one setting apart
    role: Literal["setting", "amount", "repetition"] = "setting"
    caution: str = ""  # is shown where another value is suggested
    panel: bool = False  # the panel and the sweep notebook have it, under `grid`'s name
    advised: bool = False  # another value is worth suggesting
    reference: bool = False  # it decides graph, model or weights, and so what `subgraph` computes

    @property
    def column(self) -> type:
        """The type of its column in rows: `str`, `bool`, `int` or `float`; names and options are text."""
        parts = [get_args(one)[0] if get_origin(one) is Annotated else one for one in _parts(self.annotation)]
        return next((kind for kind in (str, bool, int, float) if kind in parts), str)

    def checked(self, value: Any) -> Any:
        """Return a value as a point keeps it.

        **Raises:** `InputError` for a value that the field cannot have.
        """
        if value is None and NoneType in _parts(self.annotation):
            return None
        with about(self.name):
            if self.check is None:
                return checked(self.name, value, self.annotation)
            try:
                return self.check(self.name, value)
            except InputError:
                raise
            except (TypeError, ValueError):  # an array, which no check can compare
                raise InputError(f"{self.name} is {shown(value)}; see tclab.Point for its values") from None

    def cell(self, value: Any) -> Any:
        """Return a value as its column holds it."""
        if isinstance(value, Options):
            return str(value) or None
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value) if type(value) is int and self.column is str else value


def declare(default: Any, uses: str = "", **more: Any) -> Any:
    """Return a dataclass field with its default and what `Declaration` says of it; `uses` are the flags that it has."""
    return dataclasses.field(default=default, metadata={**more, **dict.fromkeys(uses.split(), True)})


@cache
def declarations(of: Any) -> dict[str, Declaration]:
    """Return field → declaration of a dataclass, in the order of its fields; meanings are those of its docstring."""
    hints = get_type_hints(of, include_extras=True)
    meanings = bullets(of.__doc__)
    found = {}
    for field in dataclasses.fields(of):
        name, more = field.name, {"grid": field.name, **field.metadata}
        found[name] = Declaration(name, field.default, hints[name], meanings[name], **more)
    return found


# ---- options that a library takes


class Options(dict[str, Any]):
    """Options that a point hands to a library by their names there, in the order of these; nobody changes them.

    Their text is "pin_memory:true,prefetch_factor:4", which is how rows, papermill and the command write them.
    """

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__(sorted(dict(values).items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    def __str__(self) -> str:
        values = {name: str(one).lower() if isinstance(one, bool) else one for name, one in self.items()}
        return ",".join(f"{name}:{value}" for name, value in values.items())


def option_choices(name: str, value: Any) -> list[Options]:
    """Return each combination of options that a parameter asks for.

    "prefetch_factor:2,4,pin_memory:true" has two, as {"prefetch_factor": [2, 4], "pin_memory": True}; "none" and `None`
    are no options, and so is an option's own value "none". Of a list each item has choices.

    **Raises:** `InputError` for a text without a name, or what is no mapping.
    """
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in option_choices(name, item)]
    if isinstance(value, str):
        value = {key: list(map(text_value, texts)) for key, texts in read_options(name, value).items()}
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise InputError(f"{name} is {shown(value)}, expected options by name, such as 'prefetch_factor:4'")
    axes = {key: each if isinstance(each, (list, tuple)) else [each] for key, each in (value or {}).items()}
    made = (zip(axes, values, strict=True) for values in product(*axes.values()))
    return [Options((key, one) for key, one in pairs if one not in (None, "none")) for pairs in made]


def read_options(name: str, text: str) -> dict[str, list[str]]:
    """Return name → values of a text such as "prefetch_factor:2,4,pin_memory:true", as typed; none for "" and "none".

    **Raises:** `InputError` for a text that begins without a name.
    """
    found: dict[str, list[str]] = {}
    key = ""
    for item in text.split(",") if text.lower() not in ("", "none") else ():
        before, colon, value = item.partition(":")
        key = before.strip() if colon else key
        if not key:
            raise InputError(f"{name} is {text!r}, expected a name before each value, such as 'prefetch_factor:2,4'")
        found.setdefault(key, []).append((value if colon else item).strip())
    return found


# What takes the options of a field: its switches, and others with their values. Of those of an exchange three are no
# arguments of DDP: its methods `register_comm_hook` and `no_sync`, and what a loss gathers.
_TAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "loader": ("torch.utils.data:DataLoader", {
        "prefetch_factor": AtLeast1,
        "timeout": Annotated[float, Meta(ge=0, description="seconds from 0 up")],
        "multiprocessing_context": Literal["fork", "spawn", "forkserver"],
        "pin_memory_device": str,
    }),
    "ddp": ("torch.nn.parallel:DistributedDataParallel", {
        "bucket_cap_mb": Annotated[float, Meta(gt=0, description="MiB above 0")],
        "compression": Literal["fp16", "bf16"],
        "gather_interval": AtLeast1,
        "no_sync": bool,
    }),
}  # fmt: skip


def options(name: str, value: Any) -> Options:
    """Check the options of a field, "loader" or "ddp", against the signature of what takes them.

    **Raises:** `InputError` for several choices, an unknown name, with the nearest one, or a value that it cannot have.
    """
    choices = option_choices(name, value)
    if len(choices) != 1:
        raise InputError(f"{name} is {shown(value)}, expected one value for each option")
    if not choices[0]:
        return Options()
    takes, kinds = _TAKES[name]
    for key, one in signature(resolve_name(takes)).parameters.items():  # torch is imported only here
        # DDP's `…_buffers` are switches that may be None; `drop_last` is the library's own doing
        if (isinstance(one.default, bool) or key.endswith("_buffers")) and key != "drop_last":
            kinds.setdefault(key, bool)
    check_known(f"option of {name}", kinds, *choices[0])
    return Options((key, checked(f"{key} of {name}", one, kinds[key])) for key, one in choices[0].items())
