"""Races of commands: two commits, two folders, two command lines; what is printed, exit codes, what is left behind.

The commands print their seconds and the race reads a clock of the test's own, so no verdict rests on this machine.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from compileall import compile_file
from functools import partial
from itertools import count
from statistics import median

import pytest
from clock import Clock
from slurm_box import wait_for

import tclab.timing._commands_race as commands_race
from tclab.command import main
from tclab.errors import InputError
from tclab.timing import race_commands
from tclab.timing._commands_race import answer_of
from tclab.timing._race_blocks import read_samples
from tclab.timing._verdict import explain

CAT = ["cat", "seconds.txt"]


def git(folder, *words):
    asked = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def commits(tmp_path_factory):
    """A repository whose commits print 0.1, 0.12 and again 0.12 s."""
    folder = tmp_path_factory.mktemp("commits")
    (folder / "bench").mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for tag, seconds in (("fast", "0.1"), ("slow", "0.12"), ("readme", "0.12")):
        (folder / "seconds.txt").write_text(f"warming up\n{seconds}\n{seconds}\n9.5\n")
        (folder / "bench" / "README.md").write_text(tag)
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", tag)
        git(folder, "tag", tag)
    return folder


@pytest.fixture
def repository(commits, tmp_path, monkeypatch):
    """A copy of it that is this folder; temporary files are in a folder of its own, in which nothing is left."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(shutil.copytree(commits, tmp_path / "repository"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield tmp_path / "repository"
    assert len(git(tmp_path / "repository", "worktree", "list").splitlines()) == 1
    assert os.listdir(tmp_path / "temporary") == []


@pytest.fixture
def raced(repository, monkeypatch):
    """A function that races commands by a clock by which each run takes 1/2 s; the verb has this clock, too."""
    clock, run = Clock(reading=1e-6), commands_race._run

    def half(what, command, folder, environment=None):
        clock.work(0.5)
        return run(what, command, folder, environment)

    def by_clock(command=CAT, **options):
        return race_commands(command, **{"budget_seconds": 30.0, "printed": True, **options})

    monkeypatch.setattr(commands_race, "_run", half)
    monkeypatch.setattr(commands_race, "perf_counter_ns", clock.read)
    monkeypatch.setattr(commands_race, "race", partial(commands_race.race, clock=clock.read))
    monkeypatch.setattr("tclab.timing.race_commands", by_clock)
    return by_clock


def test_two_folders_and_two_commands_are_raced_by_what_they_print_or_timed_whole(repository, raced, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "seconds.txt").write_text("0.24")
    found = raced(base=str(tmp_path / "one"), head=".")  # the folder as it is
    assert (found.verdict("head", "base"), found.pairs[0].ratio) == ("FASTER", pytest.approx(0.5))
    other = raced(base_command=["echo", "0.05"], budget_seconds=60.0)
    assert other.pairs[0].ratio == pytest.approx(0.12 / 0.05)
    text = " ".join(answer_of(other).text().split())
    assert re.search(r"Runs took turns for (59|60|61|62)[.\d]* s on .*; margin ±2.0%", text)
    assert "in this process" not in explain(found.pair("head", "base"))
    assert {sample["calls"] for sample in found.samples()} == {1}
    assert {round(sample["seconds"], 4) for sample in raced(base="fast", printed=False).samples()} == {0.5}


def test_each_side_finds_its_own_code_first_in_the_folder_that_corresponds_to_this_one(repository, raced, monkeypatch):
    monkeypatch.chdir(repository / "bench")
    own = 'case "$PYTHONPATH" in "$PWD:$PWD/src"*) test "${PWD##*/}" = bench && echo 0.1;; esac'
    assert raced(["sh", "-c", own], base="fast", head="main").pairs[0].ratio == pytest.approx(1.0)


# ---- which files a side runs


HOOK = """
import importlib.util, sys
class Redirect:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {file!r}) if name == "own" else None
sys.meta_path.insert(0, Redirect)
"""


@pytest.fixture
def sides(raced, tmp_path):
    """Two folders whose module `own` prints 0.1 in base and 0.2 in head, and a function that races them."""
    for side, seconds in (("base", 0.1), ("head", 0.2)):
        (tmp_path / side / "src" / "space").mkdir(parents=True)
        (tmp_path / side / "own.py").write_text(f"print({seconds})\n")
        (tmp_path / side / "src" / "space" / "inner.py").write_text(f"print({seconds})\n")
    (tmp_path / "hook").mkdir()

    def race_sides(code, *words, **options):
        folders = {"base": str(tmp_path / "base"), "head": str(tmp_path / "head")}
        words = ["python", *words, *([] if code is None else ["-c", code])]
        return raced(words, budget_seconds=1.0, **folders | options)

    race_sides.folder = tmp_path
    return race_sides


def ratio_of(found):
    """Return head's median over base's; a race of a few runs has no verdict."""
    head, base = ([each["seconds"] for each in found.samples() if each["arm"] == side] for side in ("head", "base"))
    return median(head) / median(base)


def test_each_side_imports_its_own_files_also_in_a_namespace_package(sides, monkeypatch):
    for file in ("own", "space/inner", "space/other"):  # as an installed version has them
        (sides.folder / "hook" / file).parent.mkdir(exist_ok=True)
        (sides.folder / "hook" / f"{file}.py").write_text("print(9)" if "other" not in file else "")
    monkeypatch.setenv("PYTHONPATH", str(sides.folder / "hook"))
    assert ratio_of(sides("import own")) == pytest.approx(2)
    assert ratio_of(sides("import space.other, space.inner")) == pytest.approx(2)


def test_no_verdict_stands_on_sides_that_ran_one_file_or_on_what_cannot_be_known(sides, monkeypatch):
    head, words = sides.folder / "head", r"^base imported .*head/own.py, expected its own own.py, in .*base: keep a"
    finder = HOOK.format(file=str(head / "own.py"))
    (head / "bench.py").write_text("import own")
    with pytest.raises(InputError, match=words):  # a script's own folder
        sides(None, str(head / "bench.py"))
    with pytest.raises(InputError, match=words):
        sides(finder + "import own")
    (sides.folder / "hook" / "sitecustomize.py").write_text(finder)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(sides.folder / "hook"))
        with pytest.raises(InputError, match=words):  # an editable install's finder
            sides("import own")
    with pytest.raises(InputError, match=r"^head: what python -I -c 'print\(1\)' imports cannot be checked"):
        sides("print(1)", "-I")
    assert ratio_of(sides("import json; print(1)")) == pytest.approx(1)


def test_compiled_bytecode_is_as_new_on_both_sides(sides, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for side in ("base", "head"):  # one of them has some, and nothing can be written to the other
        (sides.folder / side / "own.py").write_text("import pathlib; print(0.1 + pathlib.Path(__cached__).exists())")
    compile_file(sides.folder / "head" / "own.py", quiet=1)
    assert list((sides.folder / "head" / "__pycache__").iterdir())
    (sides.folder / "base" / "__pycache__").write_text("nothing can be written here")
    assert {each["seconds"] for each in sides("import own").samples()} == {1.1}
    assert len(list((sides.folder / "head" / "__pycache__").iterdir())) == 1


@pytest.mark.parametrize("left", ["sleep 600 &", "(sleep 600; echo) &", "setsid -f sleep 5;"])
def test_a_process_that_a_command_leaves_behind_is_not_waited_for(raced, left):
    found = raced(["sh", "-c", f"{left} echo 0.1"], base="fast", head="slow", budget_seconds=1.0)
    assert ratio_of(found) == pytest.approx(1)


def test_the_index_of_a_commit_under_way_is_left_alone_by_a_race_in_its_hook(raced, repository, monkeypatch):
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    said = ["sh", "-c", "env | grep -q ^GIT_[DI] && echo 9 || cat seconds.txt"]
    assert ratio_of(raced(said, base="fast", head="slow", budget_seconds=1.0)) == pytest.approx(1.2)
    monkeypatch.undo()
    assert git(repository, "status", "--short") == ""


def test_a_revision_that_a_shallow_clone_lacks_says_so(raced, repository, tmp_path, monkeypatch):
    git(repository, "clone", "--quiet", "--depth=1", f"file://{repository}", str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    with pytest.raises(InputError, match=r"base is 'fast', .*; this clone is shallow, git fetch --unshallow"):
        raced(base="fast")


def test_git_that_refuses_is_heard(raced, repository, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(InputError, match=r"base is 'fast': .* fatal: detected dubious ownership .*safe\."):
        raced(base="fast")
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    (repository / ".git" / "config").write_text("[core\n")
    with pytest.raises(InputError, match=r"base is 'fast': .* fatal: bad config line 1 in file .git/config"):
        raced(base="fast")
    (repository / ".git" / "config").write_text("[core]\n")
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match=r"base is 'fast': .* fatal: not a git repository"):
        raced(base="fast")
    monkeypatch.chdir(repository)


@pytest.mark.slow  # two Python environments are made
def test_a_setup_has_a_python_environment_of_its_own_for_each_side(raced, monkeypatch):
    run, options = commands_race._run, iter([[], ["--without-pip"], ["--without-pip"]])  # installing pip takes seconds

    def run_with(what, command, *others):
        return run(what, [*command, *next(options)] if command[1:3] == ["-m", "venv"] else command, *others)

    monkeypatch.setattr(commands_race, "_run", run_with)
    line = 'python -c "import sys; print(sys.prefix)" > prefix && test "$VIRTUAL_ENV" = "$(cat prefix)$PYTHONPATH"'
    check = "import sys; print(open('seconds').read() if sys.prefix == open('prefix').read().strip() else 'no')"
    with_pip = f'test -x "$VIRTUAL_ENV/bin/pip" && {line}'
    setups = {"setup": f"echo 0.2 > seconds && {with_pip}", "setup_base": f"echo 0.1 > seconds && {line}"}
    found = raced(["python", "-c", check], base="fast", head="slow", **setups)
    assert found.pair("head", "base").ratio == pytest.approx(2)
    with pytest.raises(InputError, match=r"^head, setup: echo no; false ended with 1: no$"):
        raced(base="fast", head="slow", setup="echo no; false")


def test_a_race_that_sigterm_ends_leaves_no_worktree_and_no_command(repository, tmp_path):
    words = ["race-commands", "--base", "fast", "--head", "slow", "--", "sh", "-c", f"touch {tmp_path}/runs; sleep 600"]
    race = subprocess.Popen(
        [sys.executable, "-m", "tclab", *words], env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for("the command", (tmp_path / "runs").exists)
    race.terminate()
    assert race.wait(60) != 0


def test_a_record_is_of_two_commits_and_of_no_others(repository, raced, tmp_path):
    record = tmp_path / "race.jsonl"
    found = raced(base="fast", head="slow", record=record)
    assert found.settings["sides"]["base"]["commit"] == git(repository, "rev-parse", "fast")
    assert found.samples() == read_samples(record) == raced(base="fast", head="slow", record=record).samples()
    with pytest.raises(InputError, match=f"{record} is the record of another race: arms was"):
        raced(base="fast", head="readme", record=record)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (CAT, {"base": "fsat"}, "base is 'fsat', expected a revision of this .* or a folder; did you mean 'fast'"),
        (CAT, {"head": "./fast"}, "head is './fast', expected"),
        ([], {}, "head has no command, expected one, such as: -- python bench.py"),
        (["no_such_program"], {}, "head: no_such_program cannot be run in .*: No such file"),
        (["sh", "-c", "echo first; echo it broke >&2; exit 3"], {}, "head: .* ended with 3: it broke"),
        (["echo", "nothing"], {}, "head: echo nothing printed no line that is a number, expected seconds"),
        (["echo", "-1"], {}, "head: echo -1 printed -1.0, expected seconds, above 0"),
        (CAT, {"budget_seconds": 0}, "budget_seconds is 0"),
    ],
)
def test_what_cannot_be_raced_is_told_in_one_line_and_leaves_nothing(raced, command, options, words):
    with pytest.raises(InputError, match=words) as caught:
        raced(command, **{"base": "fast", **options})
    assert "\n" not in str(caught.value)


def test_a_commit_raced_with_itself_has_two_worktrees_and_says_what_differs_on_this_machine(raced):
    with pytest.warns(UserWarning, match="run the same code: what differs between them is the machine"):
        found = raced(["sh", "-c", "case $PWD in *head) echo 0.3;; *) echo 0.1;; esac"], base="fast", head="fast")
    assert found.verdict("head", "base") == "SLOWER"
    assert "A control: head and base run the same code" in answer_of(found).text()


@pytest.mark.parametrize(
    ("verdict", "words", "code"),
    [
        ("SLOWER", ["--base", "fast", "--head", "slow"], 1),
        ("FASTER", ["--base=slow", "--head=fast"], 0),
        ("SAME", ["--base", "slow", "--head", "readme", "--margin", "0.05"], 0),
        ("FASTER", ["--base-command", "echo 0.5"], 0),
        ("UNDECIDED", ["--base", "fast", "--budget-seconds", "0.001"], 3),
    ],
)
def test_the_command_prints_json_and_its_exit_code_is_the_verdict(raced, capsys, verdict, words, code):
    assert main(["race-commands", "--printed", "--json", *words, "--", *CAT]) == code
    out, err = capsys.readouterr()
    assert err.startswith("making head and base ready")  # which may take minutes
    answer = json.loads(out)
    assert (answer["a"], answer["b"], answer["verdict"]) == ("head", "base", verdict)
    assert set(answer["settings"]["sides"]) == {"head", "base"}


def test_markdown_has_both_sides_and_the_verdict_and_a_wrong_argument_an_exit_code(repository, raced, capsys):
    assert main(["race-commands", "--base", "fast", "--head", "slow", "--printed", "--markdown", "--", *CAT]) == 1
    text = capsys.readouterr().out
    assert "head against base: SLOWER, 1.2× the time [1.2, 1.2]; valid unless a disturbance hit only one" in text
    assert text.strip().count("\n") == 0  # a blank line would end it
    cells = [re.sub("<.*?>", " ", row).split() for row in text.split("<tr>")]
    for side, tag, seconds in (("base", "fast", "100"), ("head", "slow", "120")):
        assert [side, *CAT, git(repository, "rev-parse", tag)[:10], seconds, "ms"] in [row[:6] for row in cells]
    assert "margin ±2.0%" in text
    assert main(["race-commands", "--base", "nowhere", "--", *CAT]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_while_it_runs_it_says_how_far_it_is_and_at_the_end_the_answer_in_words(repository, raced, capsys, monkeypatch):
    monkeypatch.setattr("tclab.timing._race.monotonic", count(0, 20).__next__)
    assert main(["race-commands", "--base=fast", "--head=slow", "--printed", "--budget-seconds", "30", "--", *CAT]) == 1
    out, err = capsys.readouterr()
    assert "\nmaking head and base, and calling each once; then 30 s of rounds\n" in err
    # a round is four runs of 1/2 s
    assert "\nround 2 of 8 that a verdict needs, 4 of 30 s; median so far: head 120 ms, base 100 ms\n" in err
    assert out.startswith("head against base: SLOWER, 1.2× the time [1.2, 1.2]; valid unless a disturb")
