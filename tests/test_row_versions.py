"""Rows that earlier versions of tclab wrote, read by this one: results folders, files, and the points in them.

`data/rows_schema_4` is a results folder, and `data/rows_schema_4.csv` a file of `write_rows`, as commit b42581d of
tclab 0.1.0 left them on a machine of two cores: the last version whose columns were called gate, habits and closure.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tclab
from tclab import InputError, Point
from tclab.sweeps import write_rows
from tclab.sweeps.store._results import Results
from tclab.sweeps.store._row_files import read_rows
from tclab.sweeps.store._rows import SCHEMA, SCHEMA_VERSION, column_types, point_of, upgraded

FOLDER = Path(__file__).parent / "data" / "rows_schema_4"
OLD_COLUMNS = set(column_types()) - set(SCHEMA.names)


@pytest.fixture
def copy(tmp_path):
    """The old folder where it can be written, as a results folder must be."""
    for path in FOLDER.glob("*.parquet"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_the_files_are_of_the_old_version():
    for path in FOLDER.glob("*.parquet"):
        assert set(pq.read_schema(path).names) >= OLD_COLUMNS >= {"gate", "habits", "deleted", "host_closure"}


def test_a_results_folder_is_read_under_todays_names(copy):
    rows = Results(copy).frame()
    assert list(rows.columns) == SCHEMA.names
    step = rows[rows["stage"] == "step"].set_index("strategy")
    assert step["status"].to_dict() == {
        "node_mask": "ok",
        "edge_mask": "ok",
        "indices": "skipped: dango is not trained on log_cosh",
    }
    assert step["equivalence"].to_dict() == {"node_mask": "passed", "edge_mask": "passed", "indices": None}
    assert step["num_deletions"].to_dict() == {"node_mask": 3, "edge_mask": 2, "indices": 3}
    assert step["overheads"].to_dict() == {"node_mask": "", "edge_mask": "item_logging", "indices": ""}
    assert step.loc["node_mask", "host_accounted"] == pytest.approx(1.0, abs=0.1)
    host = rows[(rows["where"] == "host") & (rows["strategy"] == "node_mask")].set_index("stage")
    assert {"data_wait", "step"} <= set(host.index)
    assert not {"wait", "waiting"} & set(rows["stage"])
    parts = host.drop("step")["samples_seconds"]  # what was measured is as it was: stages add up to their step
    assert sum(seconds[0] for seconds in parts) == pytest.approx(host["samples_seconds"]["step"][0], rel=1e-9)


def test_old_rows_have_means_and_the_throughput_of_these(copy):
    rows = Results(copy).frame()
    host = rows[(rows["where"] == "host") & (rows["strategy"] == "node_mask")].set_index("stage")
    step = host.loc["step"]
    assert host["mean_seconds"].drop("step").sum() == pytest.approx(step["mean_seconds"])
    assert step["mean_seconds"] == pytest.approx(sum(step["samples_seconds"]) / step["n"])
    assert step["samples_per_second"] == pytest.approx(step["batch_size"] / step["mean_seconds"])
    assert step["low_seconds"] < step["mean_seconds"] < step["high_seconds"]


def test_the_points_of_an_old_folder_can_be_run_again(copy):
    kept = Results(copy).kept()
    by_strategy = {point.strategy: point for point in kept}
    point = by_strategy["edge_mask"]
    assert (point.num_deletions, point.overheads, point.scale, point.networks) == (2, ("item_logging",), 0.01, 2)
    assert Results(copy).read(point) is None  # of another version: it is measured again and never mixed in
    rows = Results(copy).frame()
    (row,) = rows[(rows["stage"] == "step") & (rows["strategy"] == "edge_mask")].to_dict("records")
    again = point_of(row)
    assert again.networks == ("regulatory", "physical")
    assert (again.num_deletions, again.overheads, again.strategy) == (2, ("item_logging",), "edge_mask")


def test_old_rows_are_compared_with_todays(copy, tmp_path):
    rows = Results(copy).frame()
    today = rows[rows["strategy"] == "node_mask"]
    found = tclab.compare(copy, today)
    assert [pair.verdict for pair in found.pairs]
    write_rows(today, tmp_path / "rows.parquet")
    (pair,) = tclab.compare(tmp_path / "rows.parquet", FOLDER.with_suffix(".csv")).pairs
    assert pair.ratio == pytest.approx(1.0)


def test_a_csv_file_is_read_under_todays_names(copy):
    rows = read_rows(FOLDER.with_suffix(".csv"))
    assert list(rows.columns) == SCHEMA.names
    kept = Results(copy).frame()
    kept = kept[kept["strategy"] == "node_mask"].reset_index(drop=True)
    assert rows.equals(kept)


def test_todays_rows_pass_through_as_they_are(copy):
    rows = Results(copy).frame()
    table = pa.Table.from_pandas(rows, schema=SCHEMA, preserve_index=False)
    assert upgraded(table).equals(table)


def test_a_column_that_no_version_has_is_refused():
    table = pa.table({"stage": ["step"], "status": ["ok"], "tempo": [1]})
    with pytest.raises(ValueError, match="a column 'tempo'"):
        upgraded(table)
    both = pa.table({"gate": ["passed"], "equivalence": ["passed"]})
    with pytest.raises(ValueError, match="a column 'equivalence'"):
        upgraded(both)


def test_rows_of_a_newer_version_are_refused(copy):
    path = next(copy.glob("*.parquet"))
    rows = pq.read_table(path)
    about = rows.schema.metadata[b"tclab"].replace(b'"schema": 4', b'"schema": %d' % (SCHEMA_VERSION + 1))
    pq.write_table(rows.replace_schema_metadata({b"tclab": about}), path)
    with pytest.raises(InputError, match="written by a newer tclab"):
        Results(copy).frame()


def test_a_point_of_an_old_row_is_a_point_of_today():
    with pytest.raises(InputError, match="unknown field of a point 'deleted'"):
        Point(deleted=3)
