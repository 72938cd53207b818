"""Runs against runs: on rows made by hand, whose ratios are known."""

import numpy as np
import pandas as pd
import pytest
from stage_rows import drawn, row

import tclab
from tclab import InputError, Point, lab
from tclab.sweeps._compare import ratio_of_runs, run_means
from tclab.sweeps._row_files import Results
from tclab.sweeps._rows import frame, mean_columns, not_measured, table
from tclab.timing._verdict import FASTER, SAME, SLOWER, UNDECIDED, explain


def step(strategy="node_mask", seconds=0.1, *, n=30, scatter=0.02, seed=0, **fields):
    """A point's row of its whole step, whose steps scatter around `seconds`."""
    samples = seconds * np.exp(scatter * np.random.default_rng(seed).standard_normal(n))
    base = {"network_names": "a,b", "networks": 2, "overheads": "", "commit": "aaa", "torch": "2.13", "steps": n,
            "memory_bytes": 8, "edges": 10, "seed": 0, "steady": "steady" if n >= 20 else None}  # fmt: skip
    times = mean_columns(samples.tolist(), fields.get("cycle_steps", 1))
    times["median_seconds"] = float(np.median(samples))
    return row(strategy, seconds, **{**base, **fields}) | times | {"samples_seconds": samples.tolist(), "n": n}


def rows(*made):
    return frame(table(made))


def runs(*seconds, cycle=1):
    made = {"status": "ok", "samples_seconds": list(seconds), "cycle_steps": cycle}
    return run_means(pd.DataFrame(made))[0]


def thrice(strategy="node_mask", seconds=0.1, **fields):
    """Three runs of a point, whose means differ by some tenths of a percent."""
    return [step(strategy, seconds, **{"scatter": 0.005, "seed": seed, **fields}) for seed in (1, 11, 21)]


def sweep(factor=1.0, **fields):
    ways = [("node_mask", 0.1, 1), ("node_mask", 0.1, 4), ("edge_mask", 0.9, 1), ("edge_mask", 0.9, 4)]
    return rows(*(one for name, t, b in ways for one in thrice(name, t * factor * b, batch_size=b, **fields)))


def test_points_of_two_commits_are_matched_and_judged_one_by_one():
    old = sweep(commit="aaa", steps=30)
    new = pd.concat([sweep(0.5, commit="bbb", steps=60), rows(step("dense", 0.3, commit="bbb"))])
    found = tclab.compare(old, new, names=("old", "new"))
    assert [pair.verdict for pair in found.pairs] == [FASTER] * 4
    assert all(pair.ratio == pytest.approx(0.5, rel=1e-6) for pair in found.pairs)
    assert all(pair.interval[0] < 0.5 < pair.interval[1] for pair in found.pairs)
    assert found.differs == {"commit": ("aaa", "bbb")}
    assert found.only == {"old": [], "new": ["hetero_cell, dense, batch 4, 2 networks"]}
    assert all(where.endswith("synthetic, scale 0.1") for where in found.where), found.where
    assert tclab.compare(new, old).pairs[0].verdict == SLOWER
    said = str(found)
    assert "new against old, time of step:" in said
    assert "they differ in commit: aaa → bbb" in said
    assert "different times" in said
    assert "only in new: hetero_cell, dense" in said


def test_settings_that_are_one_thing_here_and_another_there_are_what_is_compared():
    a = rows(*(step("edge_mask", 0.9 * b, batch_size=b) for b in (1, 2)))
    b = rows(*(step("node_mask", 0.1 * b, batch_size=b) for b in (1, 2, 4)))
    found = tclab.compare(a, b)
    assert found.differs["strategy"] == ("edge_mask", "node_mask")
    assert [pair.ratio for pair in found.pairs] == pytest.approx([1 / 9] * 2, rel=1e-6)
    assert [pair.cell for pair in found.pairs] == [f"hetero_cell, batch {b}, 2 networks" for b in (1, 2)]
    assert found.only == {"first": [], "second": ["hetero_cell, batch 4, 2 networks"]}


def test_a_stage_on_cuda_is_compared_by_the_devices_clock():
    def side(host, device):
        gpu = {"stage": "forward", "device": "cuda", "gpu": "H200"}
        return rows(step(seconds=host, where="host", **gpu), step(seconds=device, where="device", seed=1, **gpu))

    (pair,) = tclab.compare(side(0.01, 0.2), side(0.03, 0.1), stage="forward").pairs
    assert pair.ratio == pytest.approx(0.5, rel=1e-6)
    assert pair.kept == 30


@pytest.mark.parametrize(
    ("second", "verdict", "why"),
    [
        (thrice(seconds=0.1005), SAME, "any difference is below "),
        (thrice(seconds=0.102), UNDECIDED, "the interval crosses ±2 %; from 3 and 3 runs"),
        (thrice(seconds=0.05), FASTER, "from 3 and 3 runs"),
        (thrice(n=1, seconds=0.01), UNDECIDED, "3 steps were timed, at least 6 are needed"),
        (thrice(seconds=0.01, steady="not steady"), UNDECIDED, "still changing"),
        ([step() | {"status": "oom", "samples_seconds": None}], UNDECIDED, "no time in second: oom"),
        (
            [step(seconds=0.05)],
            UNDECIDED,
            "one run of second; run-to-run variation is not known: repeats=3 measures it",
        ),
    ],
)
def test_small_differences_few_steps_and_single_runs_decide_nothing(second, verdict, why):
    (pair,) = tclab.compare(rows(*thrice()), rows(*second)).pairs
    assert pair.verdict == verdict
    assert why in explain(pair)


def test_runs_of_one_each_have_a_ratio_and_no_verdict_however_far_apart():
    found = tclab.compare(rows(step()), rows(step(seconds=0.05)))
    (pair,) = found.pairs
    assert (pair.verdict, pair.ratio, pair.interval) == (UNDECIDED, pytest.approx(0.5, rel=1e-6), None)
    assert explain(pair) == "one run each; run-to-run variation is not known: repeats=3 measures it"
    assert "1 of 1 settings ran once on a side. Run tclab.sweep(…, repeats=3) into each folder." in " ".join(
        found.cautions
    )


def test_two_runs_of_a_side_that_differ_much_tell_nothing_and_the_words_say_what_to_do():
    """Their interval is [1.5e-06, 6.5e+05] or so, which is neither printed nor drawn."""
    found = tclab.compare(*(rows(step(seconds=0.1), step(seconds=0.1 * more)) for more in (3, 2)))
    line = " ".join(str(found.pairs[0]).split())
    why = "runs of the same side differ too much to tell anything: measure more of them, on a quiet machine;"
    assert f"UNDECIDED, 0.8165× the time {why}" in line
    (dot,) = drawn(lab.charts.result_chart(found), "sure")
    assert (dot["low"], dot["high"]) == (None, None)
    often = tclab.compare(*(rows(*(step(seconds=took) for took in (0.1, 0.104))) for _ in "ab"))
    assert "[" in str(often)


def test_among_many_settings_a_difference_that_may_be_chance_is_none():
    """Two runs a side whose interval just lies beyond the margin, alone and among settings that are alike."""
    near = [thrice(seconds=0.1, batch_size=2)[:2], thrice(seconds=0.096, batch_size=2)[1:]]
    alike = [
        [one for size in range(3, 23) for one in thrice(batch_size=size)[part]] for part in (slice(2), slice(1, 3))
    ]
    (alone,) = tclab.compare(rows(*near[0]), rows(*near[1])).pairs
    assert alone.verdict == FASTER
    among, *_ = tclab.compare(rows(*near[0], *alike[0]), rows(*near[1], *alike[1])).pairs
    assert (among.verdict, among.interval) == (UNDECIDED, alone.interval)
    assert explain(among) == "among 21 comparisons such a difference may be chance: more runs may decide"


def test_other_machines_get_no_verdict_unless_nothing_else_differs():
    faster = rows(*thrice(seconds=0.05, cpu="Other", commit="bbb"))
    (pair,) = tclab.compare(rows(*thrice()), faster).pairs
    assert (pair.verdict, pair.ratio) == (UNDECIDED, pytest.approx(0.5, rel=1e-6))
    assert explain(pair).startswith("other machines (cpu), and another commit")
    for commit, verdict in (("aaa", FASTER), ("aaa+", UNDECIDED), (None, UNDECIDED)):  # perhaps of other code
        sides = (thrice(commit=commit), thrice(seconds=0.05, cpu="Other", commit=commit))
        found = tclab.compare(*(rows(*side) for side in sides))
        assert found.pairs[0].verdict == verdict
        assert found.differs == {"cpu": ("Made Up", "Other")}
    setting = tclab.compare(rows(step("edge_mask")), rows(step("node_mask", 0.05, cpu="Other", threads=7)))
    assert setting.pairs[0].verdict == UNDECIDED
    assert setting.differs.keys() == {"strategy", "cpu", "threads"}


def test_points_that_only_one_side_has_or_that_have_no_time_are_named():
    apart = tclab.compare(sweep(), rows(step("dense"), step("delta")))
    assert apart.pairs == ()
    assert "No setting is in both. No value of strategy is." in str(apart)
    assert len(apart.only["first"]) == 4
    assert lab.charts.result_chart(apart).to_dict()
    dead = frame(not_measured(Point(scale=0.02, device="cpu"), "oom"))
    (pair,) = tclab.compare(dead, dead).pairs
    assert (pair.verdict, explain(pair)) == (UNDECIDED, "no time in first: oom")
    assert pair.cell == "hetero_cell, node_mask, batch 4, 9 networks"


@pytest.mark.parametrize("mixed", [{"commit": "bbb"}, {"cpu": "Other"}, {"torch": "2.11"}, {"threads": 2}])
def test_a_side_of_several_commits_or_machines_decides_nothing(mixed):
    old, new = rows(step(seed=1), step(seed=2, **mixed)), rows(*thrice(seconds=0.05))
    for sides, name in (((old, new), "first"), ((new, old), "second")):
        (pair,) = tclab.compare(*sides).pairs
        assert (pair.verdict, pair.ratio is None) == (UNDECIDED, False)
        assert f"{name} has runs of several machines, versions or threads ({next(iter(mixed))})" in explain(pair)
    assert tclab.compare(rows(step(seed=1), step(seed=2)), new).pairs[0].verdict == FASTER


def folder(generator, runs, spread, seconds=0.1):
    """Return rows of a point that was run so often, in processes that differ by `spread`."""
    luck = seconds * np.exp(spread * generator.standard_normal(runs))
    seeds = generator.integers(1 << 30, size=runs)
    return rows(*(step(seconds=own, n=24, scatter=0.005, seed=seed) for own, seed in zip(luck, seeds, strict=True)))


@pytest.mark.parametrize(("first", "second"), [(3, 3), (5, 2)])
def test_equal_folders_are_hardly_ever_told_apart_where_runs_are_repeated(first, second):
    """Processes differ by 3 %, steps within one by 0.5 %: as independent steps they would decide nearly always."""
    generator = np.random.default_rng(0)
    missed = 0
    for _ in range(200):
        luck = [0.03 * generator.standard_normal((number, 1)) for number in (first, second)]
        sides = [runs(*np.exp(own + 0.005 * generator.standard_normal((len(own), 24)))) for own in luck]
        _, (low, high), _ = ratio_of_runs(*sides)
        missed += not low <= 1 <= high
    assert missed <= 18  # 5 % of 200; more than 18 have a chance of 1 %


def test_a_difference_beyond_what_runs_differ_by_is_found():
    generator = np.random.default_rng(1)
    old, new = folder(generator, 3, 0.003), folder(generator, 3, 0.003, seconds=0.09)
    found = tclab.compare(old, new, names=("old", "new"))
    (pair,) = found.pairs
    assert (pair.verdict, pair.margin) == (FASTER, 0.02)
    assert explain(pair) == "from 3 and 3 runs"
    (wide,) = tclab.compare(*(folder(np.random.default_rng(seed), 3, 0.05) for seed in (2, 3))).pairs
    assert (wide.verdict, wide.margin) == (UNDECIDED, 0.02)
    assert tclab.compare(old, new, margin=0.2).pairs[0].verdict == SAME


def test_runs_that_wait_for_their_loader_are_compared_by_their_means():
    """Of four steps three wait for nothing: the medians are alike, and one takes five times as long."""
    slow, fast = ([*([0.02] * 3), long] * 6 for long in (1.94, 0.34))
    ratio, (low, high), _ = ratio_of_runs(runs(fast, fast, cycle=4), runs(slow, slow, cycle=4))
    assert ratio == pytest.approx(5)
    assert (low, high) == pytest.approx((5, 5))
    assert ratio_of_runs(runs(fast, cycle=4), runs(slow, slow, cycle=4))[1:] == (None, None)


def test_folders_and_files_are_compared_as_rows_are(tmp_path):
    old, new = sweep(), sweep(2.0)
    for name, made in (("old", old), ("new", new)):
        columns = [{k: v for k, v in one.items() if v is not pd.NA} for one in made.to_dict("records")]
        Results(tmp_path / name).write(table(columns), "one.parquet")
        made.to_parquet(tmp_path / f"{name}.parquet")
    by_folder = tclab.compare(tmp_path / "old", tmp_path / "new")
    assert by_folder.names == ("old", "new")
    assert tclab.compare(tmp_path / "old", tmp_path / "old").names == ("first", "second")
    by_file = tclab.compare(tmp_path / "old.parquet", str(tmp_path / "new.parquet"))
    by_rows = tclab.compare(old, new, names=("old", "new"))
    assert by_folder.pairs == by_file.pairs == by_rows.pairs
    assert {pair.verdict for pair in by_rows.pairs} == {SLOWER}


def test_bad_input_is_one_clear_line(tmp_path):
    for first, options, words in (
        (sweep(), {"margin": 0}, "margin is 0, expected a share above 0"),
        (sweep(), {"stage": "forwards"}, "unknown stage 'forwards'"),
        (pd.DataFrame({"a": [1]}), {}, "the rows have no column 'stage'"),
        (tmp_path / "nowhere", {}, "nowhere does not exist; expected a folder of results"),
    ):
        with pytest.raises(InputError, match=words):
            tclab.compare(first, sweep(), **options)
    assert not (tmp_path / "nowhere").exists()
