"""Rows, ledgers, verdicts and advice in other programs, read back there; each where it is installed."""

import importlib
import time

import pytest
from test_lab import row

import tclab
from tclab import InputError, sweeps, trace
from tclab.sweeps.store._rows import columns_of, frame, table
from tclab.timing import Ledger
from tclab.timing._verdict import Pair

FAST = Pair("node_mask", "edge_mask", "FASTER", "beyond ±5%", ratio=0.5, interval=(0.45, 0.55))
OPEN = Pair("delta", "edge_mask", "UNDECIDED", "no time in delta")


@pytest.fixture
def rows():
    made = []
    for strategy, seconds in (("node_mask", 0.01), ("edge_mask", 0.08)):
        point = columns_of(tclab.Point(strategy=strategy, scale=0.1, networks=9, device="cpu"))
        of_all = {**point, "network_names": None, "seconds": seconds}
        made += [row(**of_all), row(**{**of_all, "seconds": seconds / 4}) | {"stage": "forward"}]
    made.append(row(**{**of_all, "strategy": "delta"}) | {"status": "oom", "mean_seconds": None})
    return frame(table(made))


@pytest.fixture
def ledger():
    with Ledger() as found:
        for _ in found.steps(range(3)):
            with found.stage("forward"):
                time.sleep(0.004)
            with found.stage("backward"):
                time.sleep(0.002)
    return found


def test_a_ledgers_chrome_trace_is_read_back_with_its_stages(ledger, tmp_path):
    file = sweeps.export(ledger, "perfetto", tmp_path / "of" / "loop.json")
    report = trace.analyze(file)
    seconds = ledger.seconds()
    stages = report.stages.set_index("stage")["self_us"]
    for name, stage in (("forward", "model_forward"), ("backward", "backward")):
        assert stages[stage] == pytest.approx(1e6 * sum(seconds[name]), rel=1e-6)
    assert report.steps["wall_us"].tolist() == pytest.approx([1e6 * took for took in seconds["step"]], rel=1e-6)
    assert report.trust.table.empty


def test_what_cannot_be_exported_is_a_sentence(rows, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="unknown program 'mlfow'; did you mean 'mlflow'"):
        sweeps.export(rows, "mlfow", tmp_path)
    with pytest.raises(InputError, match="expected a Ledger"):
        sweeps.export(rows, "perfetto", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("tclab.errors.find_spec", lambda name: None)
    for program in ("mlflow", "wandb", "tensorboard"):
        for wrong in (3, [], "rows", [1]):
            with pytest.raises(InputError, match="expected rows, a Ledger, Race, Comparison or Advice"):
                sweeps.export(wrong, program, tmp_path)
        with pytest.raises(ImportError, match=rf"pip install 'tclab\[{program}\]'"):
            sweeps.export(rows, program, tmp_path)


def of_mlflow(folder, name):
    client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=folder.as_uri())
    experiment = client.get_experiment_by_name(name)
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        metrics = {
            key: [one.value for one in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics
        }
        artifacts = {one.path for one in client.list_artifacts(run.info.run_id)}
        found[run.info.run_name] = (run.data.params, metrics, artifacts)
    return found


def test_mlflow_reads_rows_ledgers_verdicts_and_advice(rows, ledger, tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is an extra: pip install 'tclab[mlflow]'")
    sweeps.export(rows, "mlflow", tmp_path / "m", name="sweep")
    found = {
        params["strategy"]: (params, metrics, files)
        for params, metrics, files in of_mlflow(tmp_path / "m", "sweep").values()
    }
    assert set(found) == {"node_mask", "edge_mask", "delta"}
    params, metrics, files = found["edge_mask"]
    assert (params["batch_size"], params["status"]) == ("4", "ok")
    assert metrics["mean_seconds"] == [0.08]
    assert metrics["host/forward_seconds"] == [0.02]
    assert files == {"rows.csv"}
    assert found["delta"][0]["status"] == "oom"
    assert found["delta"][1] == {}
    sweeps.export(ledger, "mlflow", tmp_path / "m", name="loop")
    ((_, metrics, files),) = of_mlflow(tmp_path / "m", "loop").values()
    assert metrics["host/forward_seconds"] == pytest.approx(ledger.seconds()["forward"])
    assert files == {"ledger.csv", "ledger.txt"}
    sweeps.export([FAST, OPEN], "mlflow", tmp_path / "m", name="race")
    ((_, metrics, files),) = of_mlflow(tmp_path / "m", "race").values()
    assert metrics == {"node_mask over edge_mask/ratio": [0.5], "node_mask over edge_mask/low": [0.45],
                       "node_mask over edge_mask/high": [0.55]}  # fmt: skip
    assert files == {"verdicts.csv", "verdicts.txt"}
    sweeps.export(tclab.advise(ledger), "mlflow", tmp_path / "m", name="advice")
    ((_, _, files),) = of_mlflow(tmp_path / "m", "advice").values()
    assert files == {"advice.csv", "advice.txt"}


def of_tensorboard(folder):
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = {}
    for file in folder.rglob("events.out.*"):
        read = events.EventAccumulator(str(file.parent)).Reload()
        scalars = {key: [(one.step, one.value) for one in read.Scalars(key)] for key in read.Tags()["scalars"]}
        found[file.parent.name] = (scalars, set(read.Tags()["tensors"]))
    return found


def test_tensorboard_reads_rows_ledgers_verdicts_and_advice(rows, ledger, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra: pip install 'tclab[tensorboard]'")
    sweeps.export(rows, "tensorboard", tmp_path / "rows")
    found = of_tensorboard(tmp_path / "rows" / "tclab")
    assert len(found) == 3
    (scalars, texts) = next(found[name] for name in found if "edge_mask" in name)
    assert scalars["mean_seconds"] == [(0, pytest.approx(0.08))]
    assert {"rows/text_summary", "settings/text_summary"} <= texts
    sweeps.export(ledger, "tensorboard", tmp_path / "ledger")
    ((scalars, _),) = of_tensorboard(tmp_path / "ledger").values()
    assert scalars["host/forward_seconds"] == [(n, pytest.approx(s)) for n, s in enumerate(ledger.seconds()["forward"])]
    sweeps.export([FAST, OPEN], "tensorboard", tmp_path / "race")
    ((scalars, texts),) = of_tensorboard(tmp_path / "race").values()
    assert {key: value for key, ((_, value),) in scalars.items()} == {
        f"node_mask over edge_mask/{key}": pytest.approx(value)
        for key, value in (("ratio", 0.5), ("low", 0.45), ("high", 0.55))
    }
    sweeps.export(tclab.advise(ledger), "tensorboard", tmp_path / "advice")
    ((_, texts),) = of_tensorboard(tmp_path / "advice").values()
    assert "advice/text_summary" in texts


def wandb_records(data):
    """Yield the records of an offline run's file: a log of blocks of 32 KiB, in which a record may be in pieces."""
    at, kept = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        kept += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield kept
            kept = b""


def of_wandb(folder):
    """Return what was logged in each offline run, step by step: name -> JSON."""
    made = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    found = []
    for file in sorted(folder.rglob("*.wandb")):
        items = []
        for data in wandb_records(file.read_bytes()):
            record = made.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items.append({one.key or "/".join(one.nested_key): one.value_json for one in record.history.item})
        found.append(items)
    return found


def test_wandb_reads_rows_ledgers_verdicts_and_advice_offline(rows, ledger, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is an extra: pip install 'tclab[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name, what in (("rows", rows), ("ledger", ledger), ("race", [FAST, OPEN]), ("advice", tclab.advise(ledger))):
        sweeps.export(what, "wandb", tmp_path / name)
    wandb.teardown()  # its service would outlive the test
    of_rows = of_wandb(tmp_path / "rows")
    assert len(of_rows) == 3
    seconds = {float(items[0]["mean_seconds"]) for items in of_rows if "mean_seconds" in items[0]}
    assert seconds == {0.01, 0.08}
    (items,) = of_wandb(tmp_path / "ledger")
    kept = [float(one["host/forward_seconds"]) for one in items if "host/forward_seconds" in one]
    assert kept == pytest.approx(ledger.seconds()["forward"])
    (items,) = of_wandb(tmp_path / "race")
    assert float(items[0]["node_mask over edge_mask/ratio"]) == 0.5
    assert any("verdicts" in key for one in items for key in one)
    (items,) = of_wandb(tmp_path / "advice")
    assert any("advice" in key for one in items for key in one)
