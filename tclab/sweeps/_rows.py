"""Rows: their columns, with types, units and meanings; the files that keep them; what a DataFrame of them shows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tclab._display import Display, Shown, bytes_text, counted, seconds_text
from tclab._io import atomic_write, held, writing
from tclab._source import guarded
from tclab._version import __version__
from tclab.errors import InputError, require
from tclab.graph._synthetic_graph import NETWORK_SIZES
from tclab.sweeps._fields import declarations
from tclab.sweeps._fingerprint import unchanged
from tclab.sweeps._point import Point
from tclab.sweeps._point_inputs import file_stamps, resolve
from tclab.timing._environment import HARDWARE, contention, cores_within, environment, fingerprint
from tclab.timing._step_means import mean_step

_OWN = re.compile(r"\bgraph-([0-9a-f]{6})[0-9a-f]{6}\.npz$")  # where `keep_graph` puts a graph that was given in memory


def contention_text(row: Mapping[str, Any]) -> str | None:
    """Return how other processes used the processors during a row's timed steps; `None` where not, or not known.

    Linux counts whatever waits, a point's own threads too. Others are the cause where these are at most as many as the
    cores, where the load exceeds their number, or where a hypervisor took processors. The pressure is that of the whole
    machine, also where a job has cores of its own.

    **Arguments:**

    - `row`: its columns; those that are read are `conditions`, the environment's, `workers` and `ranks`.
    """
    moments = json.loads(row.get("conditions") or "[]")
    if len(moments) < 2:
        return None
    seen, load = contention(moments[0], moments[-1]), moments[-1].get("load")
    if not seen.shared or seen.stolen:
        return str(seen) or None
    cores, threads = cores_within(row.get("cores"), row.get("cpu_limit_cores")), row.get("threads")
    if threads is None:
        return None
    ranks, workers = row.get("ranks") or 1, row.get("workers") or 0
    # that can want a processor at once; several ranks have a thread each that exchanges gradients
    own = (threads + workers + (ranks > 1)) * ranks
    crowded = load is not None and load > own and seen.busy_percent is not None
    return str(seen) if crowded or (cores is not None and own <= cores) else None


def busy_text(rows: pd.DataFrame) -> str:
    """Return which points shared the processors with other processes, and what to do; empty without any."""
    steps = rows[(rows["stage"] == "step") & (rows["status"] == "ok")]
    busy = steps[steps["contention"].notna()]
    if busy.empty:
        return ""
    fewer = " With OMP_NUM_THREADS=1 torch's threads suffer less." if (busy["threads"] > 1).any() else ""
    return (
        f"{len(busy)} of {counted(len(steps), 'run')} shared the CPU with other programs, so the times are "
        f"unreliable: {points_text(busy)} (the first run: "
        f"{busy['contention'].iloc[0]}). Measure them again on a quiet machine (with more repeats a quiet run replaces "
        f"a disturbed one), or race them (race_points, tclab race), where all take turns.{fewer}"
    )


def points_text(rows: pd.DataFrame) -> str:
    """Return the points of some rows by their short names: "3 of hetero_cell edge_mask, batch 4; … and 2 more"."""
    points: Any = rows.groupby(["model", "strategy", "batch_size"], sort=False, dropna=False).size()
    names = [f"{n} of " * (1 < n < len(rows)) + "{} {}, batch {}".format(*point) for point, n in points.items()]
    return "; ".join(names[:3]) + f" and {points.iloc[3:].sum()} more" * (len(names) > 3)


def measured_here(row: pd.Series) -> bool:
    """Return whether a row was measured on hardware such as this machine's."""
    here = environment()
    return all((None if pd.isna(row[name]) else row[name]) == here[name] for name in HARDWARE)


def this_machine(device: str | None = None) -> str:
    """Return this machine as the title of a chart names it, "cpu · 2 cores · Intel Xeon"; both devices unless given."""
    here = environment()
    cores = counted(here["cores"], "core")  # type: ignore[arg-type]
    names = {"cpu": f"{cores} · {here['cpu']}", "cuda": str(here["gpu"])}
    if device is None:
        return " · ".join(names.values()) if here["gpu"] else names["cpu"]
    return f"{device} · {names[device]}"


def where_measured(rows: pd.DataFrame) -> str:
    """Return what rows were measured on, for a title: "cpu · 2 cores · Intel Xeon".

    Several ranks come first, with their backend and number: "cpu · gloo · 1 and 4 ranks · 2 cores · …". A machine that
    other processes kept busy ends in that word: "cpu · 2 cores · Intel Xeon · busy".
    """
    ok = rows[rows["status"] == "ok"]
    cores = ok["cores"].map(lambda number: counted(number, "core"), na_action="ignore").astype("string")
    names = (cores + " · " + ok["cpu"]).where(ok["device"] != "cuda", ok["gpu"])
    machines = ok.assign(machine=names).groupby("machine", sort=False)
    busy = {name for name, own in machines if own["contention"].notna().any()}
    named = [f"{ranks_text(own)} · {name}{' · busy' if name in busy else ''}" for name, own in machines]
    return " and ".join(named) or "nothing measured"


def ranks_text(rows: pd.DataFrame) -> str:
    """Return the device of measured rows and, where several ranks ran, what they were: "cpu · gloo · 1 and 4 ranks"."""
    numbers = sorted(set(rows["ranks"]))
    several = numbers[-1] > 1
    how = [*rows["backend"].dropna().unique(), f"{' and '.join(map(str, numbers))} ranks"] if several else []
    return " · ".join([*rows["device"].unique(), *how])


def graph_text(rows: pd.DataFrame) -> str:
    """Return the graph that all measured rows share, else nothing.

    "synthetic, scale 0.05"; a folder's or file's name; "own graph, 1,234 nodes" where it was given in memory.
    """
    graphs = rows.loc[rows["status"] == "ok", ["graph", "scale", "nodes"]].dropna(how="all").drop_duplicates()
    if len(graphs.drop(columns="nodes").drop_duplicates()) != 1:
        return ""
    graph, scale, nodes = graphs.iloc[0]
    if graph_name(graph) != graph:
        return f"own graph, {counted(int(nodes), 'node')}"
    return Path(graph).name if pd.isna(scale) else f"{graph}, scale {scale:g}"


def graph_name(graph: str) -> str:
    """Return a point's graph as it is told from others: what was given; "own 2630cd" where that was no name."""
    own = _OWN.search(graph)
    return f"own {own[1]}" if own else graph


SCHEMA_VERSION = 9  # raised when a column or a stage changes its meaning: points of an earlier one are measured again

# of columns whose names end so
_UNITS: dict[str, Callable[[float], str]] = {"seconds": seconds_text, "bytes": bytes_text}
_TEXT, _WHOLE, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

_TYPES = {str: _TEXT, int: _WHOLE, float: _REAL, bool: _FLAG}
_OF_POINT = {name: _TYPES[declared.column] for name, declared in declarations(Point).items()}
_FIRST = ("graph", "scale", "model", "strategy", "batch_size", "networks", "mode", "device", "ranks", "dtype")
_MEASURED = {
    "stage": _TEXT,
    # host, device or worker: whose time it is; loading: batches made within the host's wait. Of several ranks the
    # mean; each has rows of its own, too: "rank 0", …, whose step is the stage `whole`
    "where": _TEXT,
    "n": _WHOLE,  # steps that were timed, and had that stage
    # of all steps, total over number, so that stages add up to their step; its 95 % interval; the cycle of its blocks
    # (tclab.timing._step_means). Throughput and shares are made of it
    **dict.fromkeys(("mean_seconds", "low_seconds", "high_seconds"), _REAL),
    "cycle_steps": _WHOLE,
    # of the steps that had the stage: a typical one, which may have waited for nothing
    "median_seconds": _REAL,
    # of that stage, or of all together where stage = "step"; on a CPU the waits are those that a GPU would have
    "host_syncs": _WHOLE,
    # of the whole step, on rows with stage = "step" only
    "samples_per_second": _REAL,  # of all ranks together, by the mean step
    "batch_bytes": _WHOLE,  # all that travels with a batch
    "edge_bytes": _WHOLE,  # edges, weights and edge masks among it
    "mask_bytes": _WHOLE,  # edge masks among those
    "store_bytes": _WHOLE,  # of the LMDB files that samples and masks are read from; null where nothing is stored
    "peak_bytes": _WHOLE,  # of a process, the worst of several ranks
    "status": _TEXT,  # ok, oom, wrong: …, skipped: …, failed: …, not run: …
    "network_names": _TEXT,
    "edges": _WHOLE,
    "nodes": _WHOLE,
    **_OF_POINT,
    "backend": _TEXT,  # gloo or nccl; null for one rank, as the next ones
    "samples_report": _TEXT,  # what was read of `perturbations`, and what left out; null for synthetic samples
    "exact": _FLAG,
    # passed, failed or inexact, in fp64, in fp32 and as the point runs it; null where it was not run
    "equivalence": _TEXT,
    "equivalence_fp64_error": _REAL,  # the worst, compiled or sliced as the point is
    "equivalence_fp32_ratio": _REAL,  # the error over subgraph's own in fp32, or in the dtype where that is worse
    **dict.fromkeys(("equivalence_nodes", "equivalence_edges"), _WHOLE),
    # a user's strategy on the whole graph: passed, failed or "not compared: …"; null where it was not tried there
    "equivalence_full_size": _TEXT,
    "equivalence_left_out": _TEXT,  # what of the graph does not reach the model, in words; null where all does
    # share of a wall clock of its own that the stages of a timeline account for
    **dict.fromkeys(("host_accounted", "device_accounted"), _REAL),
    "steady": _TEXT,  # whether warm-up was over: steady, not steady, null for too few steps, or cycles, to say
    "conditions": _TEXT,  # JSON, the machine's load before and after; see tclab.timing._environment
    "contention": _TEXT,  # how other processes used the processors meanwhile; null where not, or not known
    "first_step_seconds": _REAL,  # the cold start: the first step of all, loader and caches included
    "measured_at": _TEXT,  # UTC, ISO 8601
    "tclab": _TEXT,
    "samples_seconds": pa.list_(_REAL),  # every step's time
}
ENVIRONMENT_COLUMNS = {
    **dict.fromkeys(("cpu", "gpu", "gpu_driver", "cuda", "os", "python", "torch", "torch_geometric", "numpy"), _TEXT),
    **dict.fromkeys(("commit", "allocator_settings"), _TEXT),
    **dict.fromkeys(("cores", "memory_bytes", "threads", "gpu_memory_bytes", "gpus"), _WHOLE),
    "cpu_limit_cores": _REAL,
}
_COLUMNS = {**{name: _OF_POINT[name] for name in _FIRST}, **_MEASURED, **ENVIRONMENT_COLUMNS}
SCHEMA = pa.schema(list(_COLUMNS.items()))
_NULLABLE = {_TEXT: pd.StringDtype(), _WHOLE: pd.Int64Dtype(), _REAL: pd.Float64Dtype(), _FLAG: pd.BooleanDtype()}

_CODE = b"tclab_code"  # in the metadata of a point's rows
_MOST = 25  # points that are shown
_MOST_LINES = 60  # of another table
_SETTINGS = [name for name, declared in declarations(Point).items() if declared.role != "amount"]


def columns_of(point: Point) -> dict[str, Any]:
    """Return the columns that every row of a point has, measured or not."""
    columns = {name: declared.cell(getattr(point, name)) for name, declared in declarations(Point).items()}
    # what the ranks exchange through
    columns["backend"] = None if point.ranks == 1 else {"cuda": "nccl", "cpu": "gloo"}.get(point.device)
    if isinstance(point.networks, tuple):
        columns |= {"networks": len(point.networks), "network_names": columns["networks"]}
    elif point.networks is None and point.graph == "synthetic":  # of another graph a measurement says how many it has
        columns["networks"] = len(point.kind.default_networks(list(NETWORK_SIZES)))
    return columns


def mean_columns(seconds: Sequence[float], cycle: int) -> dict[str, Any]:
    """Return a row's columns on the mean of its steps, 0 where one did not have the stage; see `_step_means`."""
    mean = mean_step(seconds, cycle)
    low, high = (mean.interval_of_ratio() if mean.value > 0 else None) or (None, None)
    return {"mean_seconds": mean.value, "low_seconds": low, "high_seconds": high, "cycle_steps": cycle}


def point_of(row: Mapping[str, Any]) -> Point:
    """Return the point that a row of a measured step was made from.

    **Raises:** `InputError` where the row does not say which networks it had, or no such point can be.
    """
    fields = {name: python_value(row[name]) for name in declarations(Point)}
    names = python_value(row["network_names"])
    if names is None:
        raise InputError("the row does not name the networks that its point was given, so it cannot be run again")
    fields["networks"] = tuple(names.split(","))
    fields["overheads"] = tuple(filter(None, (fields["overheads"] or "").split(",")))
    return Point(**fields)


def aligned(rows: pa.Table) -> pa.Table:
    """Return rows with the schema's columns, in its order: one that they lack is null, another one is left out.

    **Raises:** `pyarrow.ArrowInvalid` for a column of another type.
    """
    known = rows.select([name for name in rows.column_names if name in SCHEMA.names])
    return pa.concat_tables([SCHEMA.empty_table(), known], promote_options="permissive").cast(SCHEMA)


def python_value(value: Any) -> Any:
    """Return a value of a row as a Python object; `None` for any kind of missing value."""
    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value


def keys_of(rows: pd.DataFrame, names: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return the values that each row has in some columns, as Python objects."""
    return list(zip(*(map(python_value, rows[name]) for name in names), strict=True))


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an arrow table, with the column `contention`; a column that a row lacks is null.

    What UTF-8 cannot hold, such as half a character in an error's text, is written as `\\udcff`.
    """
    made = []
    for row in rows:
        texts = {name: value.encode("utf-8", "backslashreplace").decode() for name, value in row.items()
                 if isinstance(value, str)}  # fmt: skip
        made.append({"contention": contention_text(row), **row, **texts})
    return pa.Table.from_pylist(made, schema=SCHEMA)


def not_measured(point: Point, status: str) -> pa.Table:
    """Return the row of a point that was not measured, with why."""
    return table([{**columns_of(point), "stage": "step", "status": status}])


def with_code(rows: pa.Table, code: Mapping[str, str]) -> pa.Table:
    """Return a point's rows with the code that measured them, file → digest; see `code_in`."""
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _CODE: json.dumps(code)})


def code_in(rows: pa.Table) -> dict[str, str]:
    """Return the code that measured a point's rows; none where nobody said."""
    code: dict[str, str] = json.loads((rows.schema.metadata or {}).get(_CODE, b"{}"))
    return code


def frame(*tables: pa.Table) -> pd.DataFrame:
    """Return tables as rows whose missing values stay missing (pandas' nullable types)."""
    whole = pa.concat_tables([SCHEMA.empty_table(), *tables])
    whole = whole.combine_chunks()  # else pandas converts every column of every point by itself
    return Rows(whole.to_pandas(types_mapper=_NULLABLE.get))


# ---- files of rows: a folder of results with one for each point

_SWEEP = ".running-sweep"  # which whoever sweeps holds
_DIGEST = b"tclab_digest"
_NEEDED = ("stage", "status", "samples_seconds")  # columns without which a table is none of rows
Runs = pd.DataFrame | str | Path


@lru_cache(maxsize=4)
def _machine(variables: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return what tells this kind of machine from another, under the variables that this process has now."""
    return fingerprint()


class Results:
    """A folder of results, a file for each point.

    Jobs of a cluster write to one at once, each a file of its own. A file that is damaged is left out with a warning
    that names it.

    **Raises:** `InputError` for what is no path.
    """

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, (str, Path)) or not str(folder) or "\0" in str(folder):
            raise InputError(f"results is {folder!r}, expected a folder", name="results")
        self.folder = Path(folder).expanduser()

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other sweeps within the block.

        **Raises:** `InputError` where it cannot be written, or that names the process that sweeps into it.
        """
        with writing("results", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        with held(self.folder / _SWEEP) as owner:
            if owner is not None:
                why = f"into which {owner} sweeps: wait for its end, or name another folder"
                raise InputError(f"results is {str(self.folder)!r}, {why}", name="results")
            yield

    @staticmethod
    def name(point: Point, repeat: int = 0, machine: dict[str, Any] | None = None) -> str:
        """Return the name of a point's file: a hash of the point, the files it names, schema, machine and versions.

        Its rows say which code measured them.

        **Arguments:**

        - `point`: resolved, where this machine runs it. `repeat`: of its runs, the first is 0.
        - `machine`: what tells one kind of machine from another; this one unless given.
        """
        what = {
            "schema": SCHEMA_VERSION,
            "tclab": __version__,
            "point": point.to_dict(),
            "files": file_stamps(point),
            "machine": machine or _machine(tuple(os.environ.items())),
            "repeat": repeat,
        }
        canonical = json.dumps(what, sort_keys=True, default=str)
        return f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.parquet"

    def read(self, name: str) -> pa.Table | None:
        """Return the rows of a point by its file's name, measured by the code that there is now; `None` without any."""
        path = self.folder / name
        for file in (path, *sorted(self.folder.glob(f"{path.stem}-*.parquet"))) if path.exists() else ():
            if (rows := _read(file)) is not None:
                code = code_in(rows)
                # no process that fails to import its code says which that is
                if unchanged(code) if code else not rows["status"][0].as_py().startswith("failed"):
                    return rows
        return None

    def read_point(self, point: Point, repeat: int = 0) -> pa.Table | None:
        """Return the rows of one of a point's runs here, or `None`."""
        return self.read(self.name(resolve(point), repeat))

    def write(self, rows: pa.Table, name: str) -> None:
        """Keep a point's rows in a file of that name, instead of earlier ones; rows of other code stay beside it.

        **Raises:** `InputError` where it cannot be written, as on a disk that is full.
        """
        path = self.folder / name
        marked = rows.replace_schema_metadata({**(rows.schema.metadata or {}), _DIGEST: _digest(rows)})
        with writing("results", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and (before := _read(path)) is not None and not unchanged(code_in(before)):
                path.rename(_beside(path, before))
            _beside(path, rows).unlink(missing_ok=True)
            atomic_write(path, lambda file: pq.write_table(marked, file, write_page_checksum=True))

    def frame(self) -> pd.DataFrame:
        """Return the rows of every point in the folder, whichever machine measured them.

        The newest stand last, but for points that no process began: those stand behind all others.
        """
        read = [rows for path in sorted(self.folder.glob("[!.]*.parquet")) if (rows := _read(path)) is not None]
        read.sort(key=lambda rows: rows["measured_at"][0].as_py() or "never")  # digits sort before letters
        return frame(*read)


def _beside(path: Path, rows: pa.Table) -> Path:
    """Return where rows of a point stay once those of other code have taken their place."""
    code = json.dumps(code_in(rows), sort_keys=True).encode()
    return path.with_stem(f"{path.stem}-{hashlib.sha256(code).hexdigest()[:8]}")


def _digest(rows: pa.Table) -> bytes:
    """Return a hash of what the CRCs of Parquet's pages leave out: the columns and the number of rows."""
    columns = [[field.name, field.type.id] for field in rows.schema]
    return hashlib.sha256(json.dumps([columns, len(rows)]).encode()).hexdigest().encode()


def _read(path: Path) -> pa.Table | None:
    """Return a point's rows; `None`, with a warning, where they are not as they were written."""
    try:
        # from memory, as pyarrow maps a file, which another process may replace meanwhile
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
        rows = file.read(use_threads=False)
        if (rows.schema.metadata or {}).get(_DIGEST) != _digest(rows):
            raise ValueError("not as a sweep wrote it; where to_parquet did, tclab.rows reads the file by its name")
        return with_code(aligned(rows), code_in(rows))
    except Exception as error:  # pyarrow raises a dozen kinds for damaged bytes, MemoryError and OSError among them
        why = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"{path} is left out, as it is damaged or no file of rows ({why}); delete it, or sweep its point again, "
            "which writes it anew",
            stacklevel=3,
        )
        return None


def rows_of(runs: Runs) -> pd.DataFrame:
    """Return the rows of a folder of results, or of a Parquet file of rows (`rows.to_parquet`); rows as they are.

    A column that a file lacks is null.

    **Arguments:**

    - `runs`: rows, a folder, or a file.

    **Raises:** `InputError` for what is none of them.
    """
    if isinstance(runs, pd.DataFrame):
        if len(runs.columns):
            _check(runs.columns)
        return runs
    require("runs", runs, (str, Path), "rows, a folder of results, or a file of rows")
    path = Path(runs)
    if path.is_dir():
        rows = Results(path).frame()
        below = {str(file.parent) for file in path.glob("*/[!.]*.parquet")} if rows.empty else ()
        if below:
            raise InputError(f"no rows in {path}; there are some in {', '.join(sorted(below))}")
        return rows
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a folder of results, or a file of rows")
    with guarded(path, "a Parquet file of rows; `tclab trace` reads a trace"):
        read = pq.read_table(path)
        _check(read.column_names)
        return frame(aligned(read))


rows = rows_of  # its name in `tclab`


def _check(columns: Iterable[str]) -> None:
    for name in _NEEDED:
        if name not in columns:
            raise InputError(f"the rows have no column {name!r}; expected what tclab.sweep or tclab.run returns")


# ---- what is shown


class Rows(Shown, pd.DataFrame):
    """Rows of a sweep: any DataFrame operation gives rows again; what lacks steps or a column shows as it is."""

    @property
    def _constructor(self) -> Any:
        return Rows

    def _constructor_from_mgr(self, mgr: Any, axes: Any) -> Any:
        return Rows._from_mgr(mgr, axes)  # type: ignore[attr-defined]  # `_constructor` would go through every column again

    def __str__(self) -> str:
        return super().__str__() if self._is_of_steps() else pd.DataFrame.__repr__(self)

    def _repr_html_(self) -> str:
        return super()._repr_html_() if self._is_of_steps() else frame_html(self)

    def _is_of_steps(self) -> bool:
        return {*self.columns} >= {*SCHEMA.names} and (self.empty or bool((self["stage"] == "step").any()))

    def _display(self) -> Display:
        steps = pd.DataFrame(self[self["stage"] == "step"])
        timed = steps[steps["status"] == "ok"]
        told = timed if len(timed) else steps
        varying = [name for name in _SETTINGS if told[name].nunique(dropna=False) > 1]
        if "loss" in varying and (timed.groupby("model")["loss"].nunique() <= 1).all():  # each model has its own
            varying.remove("loss")
        shown = [name for name in _SETTINGS if name == "strategy" or name in varying]
        # a sweep measures breadth first; of what is alike the fastest stands first
        order = [name for name in ("model", "batch_size", "networks") if name in shown]
        lines = [
            (*(cell_text(row[name]) for name in shown), _time(row), cell_text(row["samples_per_second"]),
             cell_text(row["batch_bytes"], "batch_bytes"))
            for _, row in timed.sort_values([*order, "mean_seconds"], kind="stable").head(_MOST).iterrows()
        ]  # fmt: skip
        notes = [f"{counted(len(timed) - _MOST, 'more timed setting')} not shown"] if len(timed) > _MOST else []
        notes += [*without_time(steps), *filter(None, [busy_text(self)])]
        title = f"{counted(len(steps), 'setting')}, {len(timed)} timed"
        columns = (*shown, "mean step [95 %]", "samples/s", "a batch")
        return Display(title, columns if lines else (), lines, notes)


def without_time(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each status of points that have no time: how many points, and which."""
    steps = rows[(rows["stage"] == "step") & (rows["status"] != "ok")]
    sentences = []
    for status, group in steps.groupby("status", sort=False):
        more = "; run it again, or raise budget_seconds" if "budget" in str(status) else ""
        sentences.append(f"{counted(len(group), 'setting')} ({points_text(group)}): {status}{more}.")
    return sentences


def frame_html(frame: pd.DataFrame) -> str:
    """Return a DataFrame as pandas' table, numbers with four digits and what is missing blank.

    A column whose name ends in `seconds` or `bytes` has its numbers with a unit: "31.2 ms", "1.15 GB".

    An empty one shows its `attrs["empty"]`, a sentence, where it has one.
    """
    if frame.empty:
        return Display(notes=[str(frame.attrs.get("empty", "nothing"))]).html()
    cells = pd.DataFrame(frame).apply(lambda column: column.map(partial(cell_text, column=str(column.name))))
    return str(cells.to_html(notebook=True, max_rows=_MOST_LINES, index=not isinstance(frame.index, pd.RangeIndex)))


def cell_text(value: Any, column: str = "") -> str:
    """Return a value as a cell of a table has it: four digits of a number, nothing for what is missing.

    Where the name of its column ends in "seconds" or "bytes", a number has its unit.
    """
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return ""
    with_unit = _UNITS.get(column.rpartition("_")[2])
    if with_unit and isinstance(value, (int, float, np.integer)):
        return with_unit(float(value))
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 9999.5 or abs(value) > 1e15 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else str(value)


def _time(row: pd.Series) -> str:
    """Return the mean step with its 95 % interval: "12.3 ms [12.1, 13]"."""
    mean = row["mean_seconds"]
    if pd.isna(row["low_seconds"]):
        return seconds_text(mean)
    low, high = (seconds_text(row[name], mean).split()[0] for name in ("low_seconds", "high_seconds"))
    return f"{seconds_text(mean)} [{low}, {high}]"
