"""From `tclab.run` to the model's forward: the functions on the way that the architecture page names are there."""

import re
from pathlib import PurePath

# "3. in it `main` in `_worker.py` …": a function, and the file that it is in, or "there", in that of the one before
LINE = re.compile(r"^\d\. (?:in it )?`(?:\w+\.)?(\w+)`(?: \([^)]*\))? (?:in `([\w/]+\.py)`|there)", re.MULTILINE)


def test_the_eight_functions_that_lead_from_a_point_to_the_model_are_where_the_page_says(root):
    named, file = LINE.findall((root / "docs" / "architecture.md").read_text()), PurePath()
    assert len(named) == 8
    for function, path in named:
        if path:
            file = PurePath(path) if "/" in path else file.with_name(path)
        assert re.search(rf"^ *(def )?{function}\b[(:]", (root / file).read_text(), re.MULTILINE), (function, file)
