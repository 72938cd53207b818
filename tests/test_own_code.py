"""A user's own files: read anew after an edit, and never mistaken for what they were before."""

import json
import shutil
import subprocess
import sys
import textwrap

import pytest

import tclab
from tclab import InputError, Point, lab
from tclab.masking import _strategy as registry
from tclab.models import _model_registry as model_registry
from tclab.sweeps import _fingerprint, _run
from tclab.sweeps._fingerprint import loaded_code, unchanged
from tclab.sweeps._point_inputs import cell_graph_of, screen_of
from tclab.sweeps._race_points import _factory, race_arm
from tclab.sweeps._rows import Results, not_measured, with_code
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


SMALL = {"scale": 0.01, "networks": 1, "batch_size": 1, "steps": 1, "warmup": 0, "workers": 0}


def point(**fields):
    return Point(**SMALL, model="model_of_a_test", strategy="mine_of_a_test", device="cpu", **fields)


@pytest.mark.slow
def test_rows_of_an_edited_file_are_measured_again_by_a_child_that_has_read_it(own, tmp_path):
    kept = []
    helper = own.with_name("helper_of_a_test.py")
    uses, wrong = (text.replace("import tclab", "import helper_of_a_test, tclab", 1) for text in (RIGHT, WRONG))
    for text, helps, status in ((uses, "1", "ok"), (wrong, "1", "wrong"), (uses, "1", "ok"), (uses, "2", "ok"),
                                (uses, "1", "ok")):  # fmt: skip
        own.write_text(textwrap.dedent(text))
        helper.write_text(f"HELPS = {helps}")
        lab.import_file(own)
        rows = tclab.sweep([point()], results=tmp_path / "rows", progress=lambda progress: kept.append(progress.kept))
        assert {text.split(":")[0] for text in rows["status"]} == {status}
        assert set(rows["model"]) == {"model_of_a_test"}
    assert kept == [False, False, True, False, True]  # rows of code that is there again are read, not run
    assert len(tclab.rows(tmp_path / "rows").query("stage == 'step'")) == 3  # the others stay, too
    sys.modules.pop("helper_of_a_test")
    own.unlink()
    with pytest.raises(InputError, match=r"the strategy 'mine_of_a_test' was read from .*, which is no longer there"):
        tclab.sweep([point(seed=1)], results=tmp_path / "rows", progress=None)


def test_an_overhead_that_was_edited_is_measured_again_by_another_worker(tmp_path, monkeypatch):
    plain = Point(**SMALL, device="cpu", overheads="print_loss")
    kept, workers, digest_of = [], [], _fingerprint._digest_of

    def of_an_edit(file):
        return "another" if file.name == "_overheads.py" else digest_of(file)

    for digest in (digest_of, digest_of, of_an_edit):
        monkeypatch.setattr(_fingerprint, "_digest_of", digest)
        tclab.sweep(plain, results=tmp_path / "rows", progress=lambda progress: kept.append(progress.kept))
        workers.append(next(worker for kind, worker in _run._idle.items() if kind.ranks == 1))
    assert kept == [False, True, False]
    assert workers[0] is workers[1] is not workers[2]  # the one that was warm had loaded the older file


def test_rows_stand_for_each_file_that_measured_them(own, tmp_path):
    results, name = Results(tmp_path / "rows"), Results.name(point())
    helper = tmp_path / "helper_of_a_test.py"
    helper.write_text("HELPS = 1")
    own.write_text("import helper_of_a_test\n" + textwrap.dedent(RIGHT))
    lab.import_file(own)
    plain, mine = loaded_code(), loaded_code(["mine_of_a_test"])
    assert {"tclab/models/_hetero_cell.py", "tclab/message_passing/_view.py"} < set(plain)
    assert set(mine) - set(plain) >= {str(own), str(helper)}
    assert not [file for file in mine if "site-packages" in file]
    for code, stands in ((plain, True), (mine, True), (mine | {str(helper): "older"}, False), (mine, True)):
        results.write(with_code(not_measured(point(), "ok"), code), name)
        assert (results.read(name) is not None) is stands
    assert len(results.frame()) == 2  # those of the older helper, and the last
    helper.unlink()
    assert results.read(name) is None
    results.write(not_measured(point(), "failed: the child ended with 1: ModuleNotFoundError"), name)
    assert results.read(name) is None  # it failed to import what is missing, and may be there again
    helper.write_text("HELPS = 1")
    assert results.read(name)["status"][0].as_py() == "ok"
    assert unchanged(plain)
    sys.modules.pop("helper_of_a_test")


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
