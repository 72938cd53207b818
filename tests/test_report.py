"""The conclusion in words, no surer than its verdict; and a sweep as one HTML file."""

import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_compare import rows, step

from tclab import InputError, lab, masking
from tclab._display import Display, Sentences
from tclab.lab.reports._findings import conclusion
from tclab.sweeps.store._row_frame import Rows, frame_html
from tclab.timing._environment import fingerprint
from tclab.timing._verdict import SAME, UNDECIDED, Pair


def test_the_conclusion_says_what_the_rows_carry_and_that_they_were_not_raced():
    made = rows(
        step("edge_mask", 0.87, batch_size=28, networks=9, batch_bytes=1_153_525_136),
        step("node_mask", 0.1, seed=2, batch_size=28, networks=9, batch_bytes=1_016),
        step("dense", 0.3, seed=3, batch_size=28, networks=9, batch_bytes=1_016),
    )
    (said,) = conclusion(made)
    found = re.fullmatch(
        r"On cpu · 2 cores · Made Up, at batch 28 with 9 networks, hetero_cell: node_mask is (.+) × \[(.+), (.+)\] "
        r"faster than edge_mask \(run one after the other, not raced\); 1.15 GB fewer bytes per batch\.",
        said,
    )
    assert found, said
    ratio, low, high = map(float, found.groups())
    assert low < ratio < high
    assert 8.2 < low < 8.7 < high < 9.2
    assert said in lab.findings(made)


def test_on_this_machine_is_said_of_this_machine_alone():
    here = fingerprint("hardware")
    (said,) = conclusion(rows(step("edge_mask", 0.2, **here), step("node_mask", 0.1, **here)))
    assert said.startswith("On this machine, at batch 4 with 2 networks, hetero_cell: node_mask is")


def test_a_race_decides_where_there_is_one():
    made = rows(step("edge_mask", 0.2, batch_bytes=1000), step("node_mask", 0.1, batch_bytes=1000))
    raced = Pair("edge_mask", "node_mask", "SLOWER", "", ratio=8.7, interval=(8.1, 9.2), margin=0.01)
    (said,) = conclusion(made, [raced])
    assert said.endswith("node_mask is 8.7 × [8.1, 9.2] faster than edge_mask.")
    same = Pair("node_mask", "edge_mask", SAME, "", ratio=1.001, interval=(0.995, 1.005), margin=0.012)
    assert "node_mask is as fast as edge_mask, within ±1.2%." in conclusion(made, [same])[0]
    turned = Pair("node_mask", "edge_mask", "SLOWER", "", ratio=2.0, interval=(1.9, 2.1), margin=0.01)
    assert "edge_mask is 2 × [1.9, 2.1] faster than node_mask" in conclusion(made, [turned])[0]
    open_ = Pair("node_mask", "edge_mask", UNDECIDED, "too few rounds", ratio=0.9, interval=(0.7, 1.2))
    said = conclusion(made, [open_])[0]
    assert "whether node_mask is faster than edge_mask is undecided: 1.11 × [0.833, 1.43], and too few rounds." in said
    none = Pair("node_mask", "edge_mask", UNDECIDED, "no round ran")
    assert "is undecided: no round ran" in conclusion(made, [none])[0]


def test_few_steps_and_close_ones_are_never_called_faster():
    few = conclusion(rows(step("edge_mask", 0.9, n=3), step("node_mask", 0.1, n=3)))[0]
    assert "is undecided" in few
    assert "3 steps were timed, at least 6" in few
    close = conclusion(rows(step("edge_mask", 0.104, seed=1), step("node_mask", 0.1, seed=2) | {"seed": 1}))[0]
    assert " faster than edge_mask is undecided" in close or "as fast as" in close
    assert not re.search(r"× \[[^]]*\] faster than", close)  # as a claim has it
    assert conclusion(rows(step("edge_mask"))) == []
    assert conclusion(rows(step("edge_mask"), step("khop_1", 0.01, exact=False))) == []
    two = conclusion(rows(*(step(s, t, cpu=cpu) for cpu in ("One", "Two") for s, t in
                                (("edge_mask", 0.2), ("node_mask", 0.1)))))  # fmt: skip
    assert len(two) == 2  # machines are never mixed


class Page(HTMLParser):
    """What a page holds: its tags, what its attributes point to, and whether every tag is closed."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.links, self.open = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("src", "href", "xlink:href") if name in given]
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def made():
    many = [
        step(name, seconds * batch, batch_size=batch, networks=networks, network_names="abc"[:networks],
             batch_bytes=200, measured_at="2026-01-01T00:00:00+00:00", torch="<2.13 & later>")
        for name, seconds in (("edge_mask", 0.8), ("node_mask", 0.1)) for batch in (1, 2) for networks in (1, 3)
    ]  # fmt: skip
    many += [step("node_mask", 0.05, batch_size=2, networks=3, network_names="abc") | {"stage": s, "steady": None}
             for s in ("forward", "backward")]  # fmt: skip
    lost = step("dense", batch_size=2) | {"status": "oom", "median_seconds": None, "samples_seconds": None}
    return rows(*many, lost)


def test_a_report_is_one_page_that_needs_nothing_else(made, tmp_path):
    path = lab.report(made, tmp_path / "sweep.html", title="Mine & <yours>")
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.tags.count("svg") == 5
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)
    addresses = set(re.findall(r"https?://[^\s\"')<]+", text))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # namespaces, never fetched
    assert "@import" not in text
    assert "url(" not in re.sub(r"url\(#[^)]+\)", "", text)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert path.stat().st_size < 2_000_000
    assert "Mine &amp; &lt;yours&gt;" in text
    assert "&lt;2.13 &amp; later&gt;" in text
    assert "prefers-color-scheme: dark" in text
    assert "faster than edge_mask" in text
    assert "oom" in text
    assert "node_mask in place of edge_mask: predicted" in text
    assert "<NA>" not in text
    assert ">nan<" not in text


class _Planted(HTMLParser):
    """Refuses a page in which a planted element or attribute has come to life."""

    def handle_starttag(self, tag, attrs):
        assert "planted" not in tag
        assert not [name for name, _ in attrs if "planted" in name]

    handle_startendtag = handle_starttag


_MARKUP = (
    "<planted>", '"><planted>', "' onplanted='1' x='", '" onplanted="1" x="', "</style><planted>", "</svg><planted>",
    "<!--", "-->", "]]>", "<![CDATA[", "&lt;planted&gt;", "&#60;planted&#62;", "</td>", "<planted/>", "\x00<planted>",
)  # fmt: skip
_HOSTILE = st.lists(st.sampled_from(_MARKUP) | st.text(max_size=5), min_size=1, max_size=4).map("".join)


@given(cell=_HOSTILE, head=_HOSTILE)
def test_no_text_becomes_markup_in_what_a_notebook_and_the_panel_show(cell, head):
    frame = pd.DataFrame({head: [cell, cell], "other": [1.0, None]}, index=pd.Index([cell, "b"], name=head))
    timeless = step(cell) | {"model": head, "status": cell, "median_seconds": None, "samples_seconds": None}
    lines = rows(step(cell) | {"model": head, "cpu": cell, "gpu": head}, step("node_mask"), timeless)
    shown = [
        Display(head, (head, "b"), [(cell, "1")], [cell]).html(),
        frame_html(frame),
        Sentences([cell, head])._repr_html_(),
        Rows(lines)._repr_html_(),
    ]
    for html in shown:
        _Planted().feed(html)


@pytest.mark.parametrize("markup", ['"><planted>', "' onplanted='1' x='", "</svg></style><planted>"])
def test_no_text_of_rows_becomes_markup_in_a_report(markup, tmp_path):
    named = {"cpu": markup, "hostname": markup, "variant": markup}
    failed = step(markup) | {"status": f"failed: {markup}", "median_seconds": None, "samples_seconds": None}
    hostile = rows(step(f"a{markup}") | named, step(f"b{markup}") | named, failed)
    _Planted().feed(lab.findings(hostile)._repr_html_())
    _Planted().feed(lab.report(hostile, tmp_path / "hostile.html", title=markup).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_report_of_many_points_stays_small_and_of_none_is_a_page(made, tmp_path):
    grid = [
        step(name, 0.1 * batch * networks, n=8, batch_size=batch, networks=networks, network_names="a" * networks)
        for name in masking.names()[:12] for batch in range(1, 8) for networks in range(1, 7)
    ]  # fmt: skip
    skipped = [step(status="skipped: no such thing", seed=place) | {"samples_seconds": None} for place in range(996)]
    many = rows(*grid, *skipped)
    path = lab.report(many, tmp_path / "many.html")
    assert path.stat().st_size < 2_000_000
    assert "500 more are in the rows." in path.read_text()
    nothing = lab.report(made[made["status"] == "oom"], tmp_path / "none.html").read_text()
    assert "No point of this sweep was measured" in nothing
    assert "<svg" not in nothing


def test_a_report_is_utf_8_in_any_locale_and_whole_or_not_there(made, tmp_path, monkeypatch):
    import tclab.lab._html_report as module

    path = tmp_path / "sweep.html"
    monkeypatch.setattr(module, "SWEEP_CHARTS", {})
    lab.report(made, path, title="µs × 2")
    assert "µs × 2" in path.read_bytes().decode("utf-8")
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="no space"):
        lab.report(made, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.html"]


def test_a_races_verdict_is_in_the_reports_words_and_chart(made, tmp_path, monkeypatch):
    import tclab.lab._html_report as module

    raced = Pair("node_mask", "edge_mask", SAME, "", ratio=1.0, interval=(0.99, 1.01), margin=0.02)
    monkeypatch.setattr(module, "SWEEP_CHARTS", {"strategies": None})
    text = lab.report(made, tmp_path / "sweep.html", pairs=iter([raced])).read_text(encoding="utf-8")
    assert text.count("node_mask is as fast as edge_mask, within ±2.0%") == 1
    assert "times faster than" not in text
    assert ">the same<" in text


def test_a_path_that_cannot_be_is_named(made, tmp_path):
    for path in (tmp_path / "report.pdf", tmp_path / "none" / "report.html"):
        with pytest.raises(InputError, match=r"expected a file that ends with \.html in a folder that exists"):
            lab.report(made, path)
