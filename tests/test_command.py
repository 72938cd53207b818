"""The command: each verb on real input of a small size, its exit codes, its JSON."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from inspect import cleandoc

import pydantic  # noqa: F401 (where it is loaded, cyclopts has it check what a verb takes)
import pytest
from test_compare import rows, step

import tclab
from tclab import Point, lab
from tclab._display import bullets
from tclab.command import main
from tclab.command._app import _VERBS, app
from tclab.command._point_verbs import _end, _points

FEW = ["--scale", "0.01", "--batch-sizes", "1,2", "--strategies", "node_mask", "--models", "hetero_cell"]
FEW += ["--networks", "2", "--steps", "1", "--workers", "0", "--gpus", "0"]
SAME = {"scale": 0.01, "batch_sizes": [1, 2], "strategies": "node_mask", "models": "hetero_cell", "networks": 2}
SAME |= {"steps": 1, "workers": 0, "gpus": 0}
POINT = ["--scale", "0.01", "--networks", "2", "--device", "cpu", "--workers", "0", "--steps", "1"]


def answer(capsys, *words):
    """Return a verb's exit code and what its `--json` printed."""
    capsys.readouterr()
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_help_imports_neither_torch_nor_pandas():
    """That is what would make it slow: `tclab --help` takes 0.3 s of processor time, `tclab sweep --help` one."""
    code = """import sys; from tclab.command import main
main(["race-commands", "--base", ".", "--help"])  # a race of commands, which has nothing of graphs
print({"tclab.sweeps", "tclab.graph"} & {*sys.modules})
for words in ([], ["sweep"], ["race"]): main([*words, "--help"])
print({"torch", "pandas", "pyarrow", "altair"} & {*sys.modules})"""
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own)
    assert done.stdout.splitlines().count("set()") == 2, done.stderr
    assert "Usage: tclab race-commands" in done.stdout


@pytest.mark.parametrize("verb", _VERBS)
def test_a_verb_explains_itself_with_all_that_its_docstring_says(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert main([verb, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Usage: tclab {verb}" in shown
    told = cleandoc(app[verb].default_command.__doc__)
    assert [paragraph[:3] for paragraph in told.split("\n\n")[1:]] == ["- `"]  # no help shows another
    assert all(text.replace("`", "") in shown for text in bullets(told).values())
    codes = {"race-commands": "1 for SLOWER, 2 if a command fails, and 3 for", "profile": "exit with the script's code"}
    assert codes.get(verb, "") in shown
    if verb in ("sweep", "run", "race", "fits"):
        assert '"float32", "float64" or "bfloat16"' in shown
        assert ("for strategies it is all that are exact" in shown) == (verb == "sweep")


@pytest.mark.parametrize(("end", "code", "last"), [("3", 3, ""), ("'the end'", 1, "the end\n")])
def test_a_script_is_profiled_with_its_own_options_and_ends_as_by_python(end, code, last, tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text(  # py-spy has to find it, though both may be paused at first
        "import sys, time\nuntil = time.perf_counter() + 2.5\nwhile time.perf_counter() < until: pass\n"
        f"print(sys.argv[1:])\nsys.exit({end})\n"
    )
    assert main(["profile", str(script), "--epochs", "2", "-v"]) == code
    shown = capfd.readouterr()
    assert "['--epochs', '2', '-v']\n" in shown.out
    assert "train.py:3" in shown.out
    assert shown.err == last
    assert main(["profile", str(tmp_path / "no.py")]) == 2


@pytest.mark.slow  # worker processes
def test_a_sweep_by_command_and_in_python_have_the_same_points(tmp_path, capsys):
    assert main(["sweep", *FEW, "--results", str(tmp_path)]) == 0
    seen = []
    rows = tclab.sweep(tclab.grid(**SAME), results=tmp_path, progress=seen.append)
    assert [progress.kept for progress in seen] == [True, True]
    code, printed = answer(capsys, "sweep", *FEW, "--results", tmp_path)
    assert code == 0
    assert len(printed) == len(rows)
    steps = rows[rows["stage"] == "step"]
    assert [row["mean_seconds"] for row in printed if row["stage"] == "step"] == steps["mean_seconds"].tolist()


@pytest.mark.slow  # worker processes
def test_a_point_is_run(capsys):
    code, rows = answer(capsys, "run", *POINT, "--strategy", "node_mask", "--batch-size", "2")
    assert code == 0
    assert {row["strategy"] for row in rows} == {"node_mask"}
    assert next(row for row in rows if row["stage"] == "step")["mean_seconds"] > 0


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(["ok"], 0), (["ok", "skipped: no"], 0), (["skipped: no"], 1), (["ok", "oom"], 1), (["ok", "failed: no"], 1),
     (["ok", "skipped: no", "not run: the budget was spent"], 1)],
)  # fmt: skip
def test_a_point_that_failed_is_an_exit_code_and_one_that_is_skipped_beside_others_is_none(statuses, code):
    assert _end(rows(*(step(status=status) for status in statuses)), as_json=True) == code


@pytest.mark.slow  # a step is set up
def test_what_does_not_fit_is_an_exit_code(capsys):
    code, found = answer(capsys, "fits", *POINT, "--memory-bytes", "1000")
    assert code == 1
    assert "1,000 B" in found["refusal"]
    assert found["host"] > found["batch"]


def test_rows_are_read_by_advise_and_compare(root, capsys):
    rows = root / "tests" / "recorded_rows.parquet"
    code, advice = answer(capsys, "advise", rows)
    assert code == 0
    assert advice["subject"].startswith("from ")
    code, comparison = answer(capsys, "compare", rows, rows, "--margin", "0.1")
    assert code == 0
    assert {pair["ratio"] for pair in comparison["pairs"]} == {1.0}


def test_a_strategy_of_a_file_is_raced(tmp_path, root, capsys):
    record = tmp_path / "race.jsonl"
    words = ["--import", root / "tests" / "own_strategies.py", "--budget-seconds", "2", "--processes", "0"]
    code, pairs = answer(capsys, "race", "counts", "dense", *POINT, *words, "--record", record)
    assert code == 0
    assert [{pair["a"], pair["b"]} for pair in pairs] == [{"counts", "dense"}]
    assert pairs[0]["verdict"] in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    assert record.exists()


def test_values_make_every_combination_but_names_of_networks_are_one_choice():
    points = _points({"networks": "tflink,regulatory", "batch_size": "1,2"}, ("node_mask", "dense"))
    assert {*points} == {f"{way}, batch_size {size}" for way in ("node_mask", "dense") for size in (1, 2)}
    assert {point.networks for point in points.values()} == {("tflink", "regulatory")}


@pytest.mark.parametrize("folder", ["data (copy)", "my,folder", "[copy]", "a b"])
def test_a_path_is_never_split_or_stripped(folder, tmp_path, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(root / "data_samples" / "cell", folder)
    screen = f"{folder}/aao1729_data_s1.tsv"
    assert _points({"graph": folder, "perturbations": screen}) == {"": Point(graph=folder, perturbations=screen)}
    given = {"graph": folder, "perturbations": screen, "gpus": 0, "batch_sizes": 1, "strategies": "node_mask"}
    assert {(p.graph, p.perturbations) for p in tclab.grid(**given)} == {(folder, screen)}
    panel = lab.Panel(**given, results=str(tmp_path / "rows"))
    assert {(p.graph, p.perturbations) for p in panel.points()} == {(str(tmp_path / folder), str(tmp_path / screen))}
    assert lab.project_path(folder) == tmp_path / folder
    assert [p.perturbations for p in tclab.grid(**given | {"perturbations": "1, 3", "networks": 1})] == [1, 3]


def test_a_relative_path_is_of_the_project_or_of_the_notebooks_folder(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "sweep.ipynb").touch()
    (tmp_path / "notebooks" / "mine").touch()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert lab.project_path("mine") == tmp_path / "notebooks" / "mine"
    (tmp_path / "mine").touch()
    assert lab.project_path("mine") == tmp_path / "mine"
    assert lab.project_path("new") == tmp_path / "new"
    for same in ("synthetic", 3, "3", "1, 3", [1, 3]):
        assert lab.project_path(same) == same


def test_a_trace_is_read_and_two_are_compared(capsys):
    example = tclab.trace.example()
    code, tables = answer(capsys, "trace", example)
    assert code == 0
    assert sum(row["share"] for row in tables["categories"]) == pytest.approx(1)
    assert main(["trace", str(example), str(example)]) == 0
    assert f"a is {example}" in " ".join(capsys.readouterr().out.split())
    (file,) = example.iterdir()
    assert main(["compare", str(file), str(file)]) == 2
    says = capsys.readouterr().err
    assert says.startswith(f"tclab: {file}: ArrowInvalid: ")
    assert says.endswith(" (read as a Parquet file of rows; `tclab trace` reads a trace)\n")


def test_a_folder_of_folders_is_named_with_those_that_have_rows(tmp_path, capsys):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / f"{0:024x}.parquet").touch()
    above = str(folder.parent)
    assert main(["advise", above]) == 2
    assert capsys.readouterr().err == f"tclab: no rows in {above}; there are some in {folder}\n"


def test_the_panel_has_a_notebook_in_its_folder_and_jupyter_gets_what_follows(tmp_path, monkeypatch, capsys):
    rows, started, mine = str(tmp_path / "my rows, 1"), [], tmp_path / "mine.py"
    mine.touch()
    assert main(["panel", rows, "--import", str(mine), "--no-open"]) == 0
    notebook = tmp_path / "my rows, 1" / "panel.ipynb"
    assert shlex.split(capsys.readouterr().out) == ["jupyter", "lab", str(notebook)]  # as a shell takes it
    notebook.write_text(notebook.read_text().replace("panel.show()", "panel.show()  # mine"))
    monkeypatch.setattr(os, "execv", lambda program, words: started.extend(words))
    assert main(["panel", rows, "--import", __file__, "--no-open"]) == 2
    assert "is kept as it is; write into its first cell: lab.import_file('" in capsys.readouterr().err
    assert main(["panel", rows, "--", "--allow-root", "--port", "9999"]) == 0
    assert (started[1:4], started[-3:]) == (["-m", "jupyter", "lab"], ["--allow-root", "--port", "9999"])
    first, _ = json.loads(notebook.read_text())["cells"]
    source = "".join(first["source"])
    assert source.endswith("# mine")
    assert f"lab.import_file({os.path.realpath(mine)!r})\npanel = lab.Panel(results=" in source
    assert os.path.realpath(rows) in source


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--strategy", "node_mas"], "did you mean 'node_mask'?"),
        (["sweep", "--strategies", "node_mask"], "--results"),
        (["race", "node_mask", "--scale", "0.01"], "arms"),
        (["advise", "nowhere"], "nowhere does not exist"),
        (["run", "--import", "none.py"], "expected a Python file"),
        (["run", "--batchsize", "1"], "Did you mean --batch-size?"),
        (["run", "--batch-size", "1,2"], "batch_size 1 and batch_size 2: several values, expected one"),
        (["swep"], "sweep"),
        (["run", "--models", "dangoo"], "did you mean 'dango'?"),
        (["run", "--hang-seconds", "-5"], "hang_seconds is -5"),
    ],
)
def test_a_wrong_argument_is_a_sentence_and_an_exit_code(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr()
    assert said in error.err + error.out
    assert "Traceback" not in error.err
