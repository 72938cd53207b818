"""Charts: three marks by settings, verdicts, legends and titles; the strategies' pictures; markup in what is shown."""

import re
from html.parser import HTMLParser

import altair as alt
import pandas as pd
import pytest
import vl_convert
from stage_rows import drawn
from test_compare import rows, step

import tclab
from tclab import InputError, lab, masking
from tclab._display import Display, Sentences
from tclab.lab.charts._graph_charts import small_graph, tensors_of
from tclab.lab.charts._marks import lines, ratios, stacked
from tclab.lab.charts._style import EMPTY, INK, STAGE_COLOURS, STRATEGY_COLOURS, colours_of, empty_chart
from tclab.lab.charts._sweep_charts import SWEEP_CHARTS
from tclab.lab.reports._findings import answer
from tclab.masking import names
from tclab.sweeps._rows import Rows, frame_html
from tclab.timing._ledger import STAGES


def both(**fields):
    """The rows of two points, each with two stages that make it up."""
    made = []
    for name, seconds in (("node_mask", 0.1), ("edge_mask", 0.8)):
        made.append(step(name, seconds, **fields))
        for stage, share in (("forward", 0.4), ("backward", 0.6)):
            made.append(step(name, seconds * share, **fields) | {"stage": stage})
    return made


def units(spec):
    """The parts of a chart that have a mark."""
    inner = [part for name in ("layer", "vconcat", "hconcat") for part in spec.get(name, [])]
    inner += [spec["spec"]] if "spec" in spec else []
    return [spec] if "mark" in spec else [unit for part in inner for unit in units(part)]


FEW = pd.DataFrame(
    {"line": ["a", "b"], "value": [1.0, 2.0], "low": [0.9, 1.5], "high": [1.1, 3.0], "sure": [True, False]}
)
PARTS = pd.DataFrame({"bar": ["x", "x", "y"], "part": ["forward", "mine", "forward"], "value": [0.5, 0.25, 0.1]})
COLOURS = colours_of(PARTS["part"], STAGE_COLOURS)
LINES = pd.DataFrame({"line": ["a", "a", "b", "b"], "x": [1, 2, 1, 2], "y": [1.0, 3.0, 1.0, 3.01]})
MARKS = {
    "ratios": lambda: ratios(FEW, "t", axis="times", band=(0.95, 1.05)),
    "stacked": lambda: stacked(PARTS, "t", axis="a step [s]", colours=COLOURS),
    "stacked panels": lambda: stacked(PARTS.assign(panel=PARTS["bar"]), "t", axis="[s]", colours=COLOURS),
    "lines": lambda: lines(LINES, "t", x="x", y="y"),
    "lines with a legend": lambda: lines(LINES, "t", x="x", y="y", legend=True),
    "lines in panels": lambda: lines(LINES.assign(panel=LINES["line"]), "t", x="x", y="y", log=""),
}


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_is_a_picture_with_its_number_under_the_mouse_and_words_for_a_dark_page(name):
    chart = MARKS[name]()
    assert vl_convert.vegalite_to_png(chart.to_json())[:4] == b"\x89PNG"
    every = units(chart.to_dict())
    data = [unit for unit in every if unit["mark"]["type"] in ("point", "bar")]
    assert data
    assert all(any(tip["type"] == "quantitative" for tip in unit["encoding"]["tooltip"]) for unit in data)
    for unit in (unit for unit in every if unit["mark"]["type"] == "text"):
        colour = unit["encoding"].get("color", {})
        ink = colour.get("value", unit["mark"].get("color"))
        assert ink in (INK.to_dict(), "#1b1b1b")  # dark ink stands on the light colour of a part


@pytest.mark.parametrize("name", ["stacked", "lines with a legend"])
def test_a_legend_lies_below_and_a_click_on_it_fades_what_it_does_not_name(name):
    spec = MARKS[name]().to_dict()
    (param,) = [param for param in spec["params"] if param.get("bind") == "legend"]
    faded = [unit for unit in units(spec) if unit["encoding"].get("opacity", {}).get("condition", {})]
    assert any(unit["encoding"]["opacity"]["condition"]["param"] == param["name"] for unit in faded)
    assert set(re.findall(r"'orient': '(\w+)'", str(spec))) == {"bottom"}
    zooms = [param["select"]["zoom"] for param in spec["params"] if param.get("bind") == "scales"]
    assert all("ctrlKey" in zoom for zoom in zooms)  # the wheel alone scrolls the page
    assert bool(zooms) == ("lines" in name)


def test_parts_stand_end_to_end_names_apart_and_what_is_undecided_is_hollow():
    bars = {(line["bar"], line["part"]): line for line in drawn(MARKS["stacked"](), "part")}
    assert (bars["x", "forward"]["start"], bars["x", "forward"]["end"]) == (0.0, 500.0)  # ms
    assert (bars["x", "mine"]["start"], bars["x", "mine"]["end"]) == (500.0, 750.0)
    assert bars["x", "mine"]["share"] == pytest.approx(1 / 3)
    ends = sorted(line["at"] for line in drawn(MARKS["lines"](), "at") if line["name"])
    assert ends[1] / ends[0] > 1.05
    points = [unit for unit in units(MARKS["ratios"]().to_dict()) if unit["mark"]["type"] == "point"]
    assert {unit["mark"]["filled"]: "!datum.sure" in str(unit["transform"]) for unit in points} == {
        True: False, False: True
    }  # fmt: skip


def test_parts_that_cannot_be_seen_are_one_which_lists_them_and_words_take_no_room_from_another_bar():
    made = {"forward": 0.888, "clip": 0.005, "log": 0.004, "mask": 0.003}
    parts = pd.DataFrame({"bar": "x", "part": list(made), "value": list(made.values()), "text": "0.9 s"})
    parts.loc[len(parts)] = ["y", "forward", 0.0, "word " * 12]
    chart = stacked(parts, "t", axis="a step [s]", colours=STAGE_COLOURS)
    bars = {line["part"]: line for line in drawn(chart, "part") if line["bar"] == "x"}
    assert list(bars) == ["forward", "rest"]
    assert bars["rest"]["value"] == pytest.approx(12)  # ms
    assert bars["forward"]["end"] == pytest.approx(900)
    assert {line["rest"] for line in bars.values()} == {"clip 5 ms, log 4 ms, mask 3 ms"}
    (bar,) = [unit for unit in units(chart.to_dict()) if unit["mark"]["type"] == "bar"]
    assert "rest" in [tip["field"] for tip in bar["encoding"]["tooltip"]]
    assert bar["encoding"]["x"]["scale"]["domain"][1] < 1000


@pytest.mark.parametrize("ends", [(78.57, 80.14), (1627.1203, 1627.1203), (0.98, 1.04), (3.1, 9.9), (11, 900)])
def test_a_logarithmic_axis_has_two_labels_at_least(ends):
    one = FEW.assign(value=ends, low=ends, high=ends)
    along = LINES.assign(y=[*ends, *ends])
    for chart in (ratios(one, "t", axis="times", one=None), lines(along, "t", x="x", y="y", log="y")):
        svg = vl_convert.vegalite_to_svg(chart.to_json())
        axes = re.findall(r'<g class="mark-text role-axis-label".*?</g>', svg, re.DOTALL)
        shown = [re.findall(r'<text(?![^>]*opacity="0")[^>]*>([\d.]+)</text>', axis) for axis in axes]
        assert max(len(set(labels)) for labels in shown) >= 2, svg
        assert max(len(label) for labels in shown for label in labels) < 7


@pytest.mark.parametrize("by", ["batch_size", "networks"])
def test_of_many_lines_the_fastest_what_it_is_compared_with_and_two_more_have_a_colour(by):
    """node_mask is the fastest at 8, dense at 1; loading alone and what is inexact lead nowhere."""
    seconds = {"node_mask": 0.1, "gpu_mask": 0.2, "gpu_filter": 0.3, "dense": 0.4, "delta": 0.41, "edge_mask": 0.9}
    made = [step(name, took, **{by: n}) for name, took in seconds.items() for n in (2, 8)]
    made += [step("dense", 0.01, **{by: 1}), step("stored_mask", 0.05, **{by: 8})]  # the latter is no line
    made += [step(name, 0.001, **{by: n}, **more) for n in (2, 8)
             for name, more in (("khop_1", {"exact": False}), ("subgraph", {"mode": "data"}))]  # fmt: skip
    made += [step("indices", 0.1, model="dango", **{by: n}) for n in (2, 8)]
    chart = lab.charts.throughput(rows(*made), by)
    found = pd.DataFrame(drawn(chart, "at"))
    hetero = found[found["panel"] == "hetero_cell"]
    assert set(hetero[~hetero["faint"]]["line"]) == {"node_mask", "edge_mask", "dense", "gpu_mask"}
    assert set(hetero[hetero["faint"]]["line"]) == {"gpu_filter", "delta", "stored_mask", "khop_1"}
    assert set(hetero[hetero["faint"]]["kind"]) == {"others"}
    assert not found[found["line"] == "indices"]["faint"].any()
    named = hetero[hetero["name"] != ""].sort_values("at")
    assert {"node_mask", "edge_mask", "dense", "gpu_mask"} == set(named["name"])
    assert named["end"].unique().tolist() == [8.0]
    assert (named["at"].to_numpy()[1:] / named["at"].to_numpy()[:-1]).min() > 1.05
    assert "grey: others, named under the mouse" in str(chart.to_dict()["title"])


@pytest.mark.parametrize(
    ("one", "other"),
    [({"hidden": None}, {"hidden": 64}), ({"cpu": "One"}, {"cpu": "Two", "cores": 16, "memory_bytes": 9})],
)
def test_no_chart_adds_up_or_joins_points_with_different_settings(one, other):
    made = rows(*both(**one), *both(seed=5, **other))
    dots = drawn(lab.charts.throughput(made), "sure")
    assert len(dots) == len({dot["line"] for dot in dots}) == 4
    parts = drawn(lab.charts.stages(rows(*both(**one), *both(**other))), "part")
    assert len(parts) == len({(part["bar"], part["part"]) for part in parts}) == 8
    alone = str(lab.charts.throughput(made, "batch_size").to_dict())
    assert "Measured at batch 4 alone; a line over the batch size needs others:" in alone
    made = rows(*both(**one), *both(**one, batch_size=8), *both(**other), *both(**other, batch_size=8))
    assert len({line["line"] for line in drawn(lab.charts.throughput(made, "batch_size"), "line")}) == 4


@pytest.mark.parametrize("view", SWEEP_CHARTS)
def test_a_point_that_was_run_several_times_is_drawn_once(view):
    chart = SWEEP_CHARTS[view](rows(*(one for seed in range(3) for one in both(seed=seed))))
    for column in ("sure", "share", "at"):
        lines = drawn(chart, column)
        assert len({(line.get("line"), line.get("bar"), line.get("part")) for line in lines}) == len(lines)
    assert "Made Up" in str(chart.to_dict()["title"]["subtitle"])


def test_a_row_has_the_word_of_its_verdict_as_the_answer_has():
    lost = step("stored_mask") | {"status": "oom", "samples_per_second": None, "samples_seconds": None}
    made = rows(
        step("node_mask", 0.100, seed=1, scatter=0.001), step("gpu_mask", 0.105, seed=2),
        step("dense", 0.101, seed=3, scatter=0.001), step("edge_mask", 0.2, seed=4),
        step("gpu_filter", 0.107, n=3, seed=5), step("khop_1", 0.01, exact=False), lost,
    )  # fmt: skip
    far = rows(  # once each, so that no row has a word
        step("node_mask", 0.1, seed=1), step("edge_mask", 0.2, seed=2), step("indices", 0.1, seed=3, model="dango")
    )  # fmt: skip
    titles = [str(lab.charts.throughput(each).to_dict()["title"]) for each in (made, rows(*both()), far)]
    assert ["verdict against the fastest" in title for title in titles] == [True, False, False]
    dots = drawn(lab.charts.throughput(made), "sure")
    said = {line["line"]: line["text"].split(" · ")[-1] for line in dots}
    why = {line["line"]: line["why"] for line in dots}  # under the mouse: a sentence on each row would widen the chart
    few = "3 steps were timed, at least 6 are needed"
    # one run each decides nothing, however far apart
    assert (said["gpu_mask"], said["gpu_filter"], said["dense"]) == ("200 B", "undecided", "200 B")
    assert (why["gpu_mask"], why["gpu_filter"]) == ("", f"undecided: {few}")
    assert (said["stored_mask"], said["khop_1"], said["edge_mask"]) == ("oom", "inexact", "200 B")
    (sentence,) = answer(made)
    assert (
        "highest throughput, 40 samples/s, but it is not certainly faster than dense, gpu_mask, edge_mask" in sentence
    )
    assert f"(one run each; run-to-run variation is not known: repeats=3 measures it), gpu_filter ({few})" in sentence


def test_several_runs_of_each_have_verdicts_in_the_chart_and_in_the_answer():
    made = rows(*(
        each
        for seed in range(3)
        for each in (
            step("node_mask", 0.1, seed=seed, scatter=0.001), step("gpu_mask", 0.103, seed=seed + 10, scatter=0.1),
            step("dense", 0.1005, seed=seed + 20, scatter=0.001), step("edge_mask", 0.2, seed=seed + 30),
        )
    ))  # fmt: skip
    dots = drawn(lab.charts.throughput(made), "sure")
    said = {line["line"]: line["text"].split(" · ")[-1] for line in dots}
    unsure = "the interval crosses ±5%: set more repeats"
    assert (said["gpu_mask"], said["dense"], said["edge_mask"]) == ("undecided", "as fast", "200 B")
    assert f"undecided: {unsure}" in [line["why"] for line in dots if line["line"] == "gpu_mask"]
    (sentence,) = answer(made)
    assert f"it is not certainly faster than gpu_mask ({unsure}); as fast, within ±5%: dense." in sentence
    assert "node_mask is at least 1.99× as fast as edge_mask (2× as measured)." in sentence


def test_what_has_no_time_is_named_under_the_title_of_its_axis():
    lost = step("edge_mask", batch_size=4) | {"status": "oom", "samples_per_second": None}
    made = rows(*(step(name, batch_size=batch) for name in ("node_mask", "edge_mask") for batch in (1, 2)), lost)
    chart = lab.charts.throughput(made, "batch_size").to_dict()
    assert "oom at 4: hetero_cell · edge_mask" in str(chart["title"]["subtitle"])
    none = lab.charts.throughput(rows(lost))
    assert repr(none).startswith(EMPTY)
    assert "1 × oom" in str(none.to_dict())


def test_each_strategy_has_one_colour_in_every_chart_a_users_own_among_them_and_no_stage_has_it():
    assert len(set(colours_of(names()).values())) == len(names())  # a new strategy has one without a line there
    alone, among = (colours_of(some) for some in (["mine"], [*STRATEGY_COLOURS, "mine", "other"]))
    assert alone["mine"] == among["mine"]
    assert len(set(among.values())) == len(among)
    assert not set(STAGE_COLOURS.values()) & set(STRATEGY_COLOURS.values())
    assert len(set(STAGE_COLOURS.values())) == len(STAGE_COLOURS)
    assert {*STAGES, "sample", "collate", "idle"} == set(STAGE_COLOURS)


def test_a_notebook_shows_charts_as_pictures_in_a_front_end_also_as_charts_and_frames_as_tables(monkeypatch):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shown, plain = (shell.display_formatter.formatters[kind] for kind in ("text/html", "text/plain"))
    try:
        for live, kinds in ((False, {"image/png"}), (True, {"image/png", "application/vnd.vegalite.v5+json"})):
            with alt.renderers.enable(alt.renderers.active):
                lab.show_charts(live=live)
                made = MARKS["ratios"]()._repr_mimebundle_()
            assert set(made[0] if isinstance(made, tuple) else made) == kinds
        assert "<table" in shown(pd.DataFrame({"a": [1.5]}))
        assert "1 setting" in shown(rows(step()))
        nothing = pd.DataFrame()
        nothing.attrs["empty"] = "No copies in this trace."
        assert plain(nothing) == "No copies in this trace."
        assert plain(pd.DataFrame({"a": [1.5]})).split() == ["a", "0", "1.5"]
        assert plain(MARKS["lines"]()) == "chart: t"  # in a log of papermill
        assert plain(empty_chart("no rows")).startswith(EMPTY)  # which tools/notebook_pictures.py looks for
    finally:
        shown.pop(pd.DataFrame)
        plain.pop(pd.DataFrame)
        plain.pop(alt.TopLevelMixin)


# ---- pictures of the strategies, which say what their batches and views hold


GRAPH = small_graph(10)
EDGES = GRAPH.networks["interacts"].edge_index.t().tolist()
DELETIONS = [[0], [3, 4], []]
MASKED = [name for name in masking.names() if masking.get(name).masks_graph]


@pytest.mark.parametrize("strategy", MASKED)
def test_each_strategy_is_drawn_from_what_it_holds(strategy):
    _, drawings, entries, _ = tensors_of(GRAPH, DELETIONS, strategy)
    drawn = lab.charts.mask_picture(GRAPH, DELETIONS, strategy).to_dict()
    assert drawn["title"]["text"] == strategy
    assert f"{entries} entries of edge lists and matrices in memory for 3 samples" in drawn["title"]["subtitle"][1]
    assert "`" not in str(drawn["title"]["subtitle"])
    states = [state for *_, states in drawings for state in states]
    assert sum(state.startswith("deleted") for state in states) == 3
    shown = {state for _, edges, _ in drawings for *_, state in edges} | set(states)
    legend = drawn["hconcat"][0]["layer"][0]["encoding"]["color"]["scale"]
    assert set(legend["domain"]) == shown  # it lists nothing else


def test_what_copies_holds_every_sample_s_edges_and_what_shares_a_matrix_and_its_transpose():
    counts = {name: tensors_of(GRAPH, DELETIONS, name)[2] for name in MASKED}
    left = sum(not {a, b} & set(deleted) for deleted in DELETIONS for a, b in EDGES)
    assert counts["edge_mask"] == counts["gpu_mask"] == counts["stored_mask"] == 3 * len(EDGES)
    assert counts["subgraph"] == left < 3 * len(EDGES)
    assert counts["gpu_filter"] == left + 3 * len(EDGES)  # what it filters from stays
    assert counts["node_mask"] == 2 * len(EDGES)
    assert counts["dense"] == 10 * 10
    assert counts["delta"] > counts["node_mask"]  # the differences, beside what is shared


def test_an_edge_is_dashed_where_an_end_is_deleted_and_delta_colours_who_hears_from_one():
    masked, differs = (
        {title: (edges, states) for title, edges, states in tensors_of(GRAPH, DELETIONS, name)[1]}
        for name in ("edge_mask", "delta")
    )
    for sample, deleted in enumerate(DELETIONS):
        for a, b, state in masked[f"sample {sample}"][0]:
            assert (state == "summed") == (a not in deleted and b not in deleted)
        hears = {b for a, b in EDGES if a in deleted} - set(deleted)
        states = differs[f"sample {sample}"][1]
        assert {node for node, state in enumerate(states) if state.startswith("differs")} == hears


def test_what_cannot_be_drawn_says_so():
    for call, words in (
        (lambda: tensors_of(tclab.CellGraph.synthetic(0.02, metabolism=False), [[0]], "node_mask"), "too much to"),
        (lambda: tensors_of(GRAPH, DELETIONS, "indices"), "makes no masked graph"),
        (lambda: small_graph(3), "expected 4 to 30"),
    ):
        with pytest.raises(InputError, match=words):
            call()


# ---- no text of rows becomes markup in what a notebook and the panel show


class _Planted(HTMLParser):
    """Refuses a page in which a planted element or attribute has come to life."""

    def handle_starttag(self, tag, attrs):
        assert not [name for name in (tag, *dict(attrs)) if "planted" in name]

    handle_startendtag = handle_starttag


@pytest.mark.parametrize("text", [
    "<planted>", '"><planted>', "' onplanted='1' x='", '" onplanted="1" x="', "</style><planted>", "</svg><planted>",
    "--><planted>", "]]><planted>", "&lt;planted&gt;", "&#60;planted&#62;", "</td><planted/>", "\x00<planted>",
])  # fmt: skip
def test_no_text_becomes_markup_in_what_a_notebook_and_the_panel_show(text):
    frame = pd.DataFrame({text: [text, text], "other": [1.0, None]}, index=pd.Index([text, "b"], name=text))
    timeless = step(text) | {"model": text, "status": text, "median_seconds": None, "samples_seconds": None}
    lines = rows(step(text) | {"model": text, "cpu": text, "gpu": text}, step("node_mask"), timeless)
    shown = [
        Display(text, (text, "b"), [(text, "1")], [text]).html(),
        frame_html(frame),
        Sentences([text])._repr_html_(),
        Rows(lines)._repr_html_(),
    ]
    for html in shown:
        _Planted().feed(html)
