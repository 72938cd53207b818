"""A user's own files: read anew after an edit, and never mistaken for what they were before."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tclab
from tclab import InputError, Point, lab
from tclab.masking import _strategy as registry
from tclab.models import _model_registry as model_registry
from tclab.sweeps.analysis._race_points import _factory, race_arm
from tclab.sweeps.config._point_inputs import cell_graph_of, screen_of
from tclab.sweeps.store import _code_fingerprint as code_fingerprint
from tclab.sweeps.store._row_files import Results
from tclab.timing import _environment

RIGHT = """
    import tclab
    from tclab import masking, models
    from tclab.message_passing import SharedView

    @masking.register
    class Mine(masking.Strategy):
        name = "mine_of_a_test"
        def view(self, batch):
            return SharedView(self.graph, batch.deletions)

    models.register(models.ModelKind(
        "model_of_a_test",
        lambda graph, metabolism: models.HeteroCell.profiling(graph),
        {"square": lambda graph: lambda output, targets, *, epoch=0: (output - targets).square().mean()},
    ))
"""
WRONG = (
    RIGHT.replace("batch.deletions", "self.nothing(batch)")
    + """
    Mine.nothing = lambda self, batch: {
        kind: tclab.perturbation.Deletions.nothing(batch.size) for kind in self.graph.num_nodes}
"""
)


two_networks = tclab.CellGraph.synthetic(0.01, metabolism=False).select(2)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of the user's own, imported; what it registers is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine_of_a_test.py"
    path.write_text(textwrap.dedent(RIGHT))
    lab.import_file(path)
    yield path
    sys.modules.pop("mine_of_a_test", None)


def point(**fields):
    base = {"scale": 0.01, "networks": 1, "batch_size": 1, "steps": 1, "warmup": 0, "workers": 0}
    return Point(**base, model="model_of_a_test", strategy="mine_of_a_test", device="cpu", **fields)


@pytest.mark.slow
def test_rows_of_an_edited_file_are_measured_again_by_a_child_that_has_read_it(own, tmp_path):
    kept = []
    for text, status in ((RIGHT, "ok"), (WRONG, "wrong"), (RIGHT, "ok")):
        own.write_text(textwrap.dedent(text))
        lab.import_file(own)
        rows = tclab.sweep([point()], results=tmp_path / "rows", progress=lambda progress: kept.append(progress.kept))
        assert {text.split(":")[0] for text in rows["status"]} == {status}
        assert set(rows["model"]) == {"model_of_a_test"}
    assert kept == [False, False, True]  # the third is read, not run


def test_rows_are_of_the_code_that_a_point_runs(own, tmp_path, monkeypatch):
    plain, mine = Point(scale=0.01, device="cpu"), point()
    before, of_mine = Results.name(plain), Results.name(mine)
    own.write_text("# coding: latin-1\n# Zürich" + textwrap.dedent(WRONG), encoding="latin-1")
    assert Results.name(plain) == before
    assert Results.name(mine) != of_mine
    read = Path.read_bytes
    for package in ("graph", "masking", "message_passing", "models", "perturbation", "training"):
        edited = Path(tclab.__file__).parent / package / "__init__.py"
        code_fingerprint._digest.cache_clear()
        with monkeypatch.context() as other:
            other.setattr(Path, "read_bytes", lambda path, edited=edited: read(path) + b"# edited" * (path == edited))
            assert Results.name(plain) != before, package
        code_fingerprint._digest.cache_clear()
    assert Results.name(plain) == before


def test_a_race_in_other_processes_can_find_what_is_the_users_own(own):
    text = _factory(point(mode="data"), [point(mode="data")]).split(":", 2)[2]
    told = json.loads(text)
    assert told["modules"] == ["mine_of_a_test"]
    assert json.loads(_factory(Point(scale=0.01), [Point(scale=0.01)]).split(":", 2)[2])["modules"] == []
    sys.modules.pop("mine_of_a_test")  # as in a fresh process
    registry._STRATEGIES.pop("mine_of_a_test")
    model_registry._MODELS.pop("model_of_a_test")
    race_arm(text).call()  # a race hands its own sys.path on
    assert "mine_of_a_test" in tclab.masking.names()


def test_what_cannot_be_imported_is_said(tmp_path):
    for name in ("json.py", "pytest.py"):
        (tmp_path / name).write_text("")
        with pytest.raises(InputError, match="the name of a module that exists already"):
            lab.import_file(tmp_path / name)


def halved(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))


SCREEN = {"scale": 0.01, "perturbations": "cell/aao1729_data_s1.tsv"}


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"graph": "cell"}, lambda path: halved(path / "BIOGRID-ORGANISM-Made_up-0.0.0.tab3.txt")),
        ({"graph": "graph.npz"}, lambda path: two_networks.save(path)),
        (SCREEN, halved),
    ],
)
def test_a_file_or_folder_that_has_changed_is_read_again_and_its_rows_are_others(fields, change, root, tmp_path):
    shutil.copytree(root / "data_samples" / "cell", tmp_path / "cell")
    two_networks.select(1).save(tmp_path / "graph.npz")
    field, name = list(fields.items())[-1]
    asked, found = Point(**{**fields, field: str(tmp_path / name)}, device="cpu"), []
    for _ in range(2):
        read = screen_of(asked).report if field == "perturbations" else cell_graph_of(asked).num_edges
        found.append((Results.name(asked), str(read)))
        change(tmp_path / name)
    assert all(before != after for before, after in zip(*found, strict=True))


def test_only_what_runs_changes_the_commit_of_a_row(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-C", tmp_path, "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package, notebook = tmp_path / "tclab" / "__init__.py", tmp_path / "sweep.ipynb"
    package.parent.mkdir()
    package.write_text("")
    notebook.write_text("{}")
    commit = _environment._commit.__wrapped__  # not what was found before
    monkeypatch.setattr(_environment, "__file__", str(package.parent / "timing" / "_environment.py"))
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message=first")
    first = git("rev-parse", "HEAD")
    notebook.write_text('{"saved": true}')  # as JupyterLab does by itself while a sweep runs
    git("commit", "--quiet", "--all", "--message=a notebook")
    assert commit() == first
    package.write_text("# changed")
    assert commit() == first + "+"
    git("commit", "--quiet", "--all", "--message=the package")
    assert commit() == git("rev-parse", "HEAD")
