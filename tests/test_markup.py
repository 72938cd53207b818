"""No text of rows becomes markup in what a notebook and the panel show."""

from html.parser import HTMLParser

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from test_compare import rows, step

from tclab._display import Display, Sentences
from tclab.sweeps.store._rows import Rows, frame_html


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
