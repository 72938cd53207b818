"""Some of the drawn tables and traces of `benchmarks/silent_errors.py`, which takes 10,000 and 2,000."""

import random

import pytest
import silent_errors as silent


@pytest.mark.parametrize(
    ("draw", "fault", "count", "read"),
    [(silent.drawn_table, silent.table_fault, 80, 25), (silent.drawn_trace, silent.trace_fault, 12, 12)],
    ids=["tables", "traces"],
)
def test_a_drawn_file_is_read_as_it_was_drawn_or_refused(draw, fault, count, read, tmp_path):
    counts = silent.variants(count, 1, draw, fault, tmp_path)
    assert counts["wrong"] == 0
    assert counts["read"] >= read


def test_a_wrong_reader_is_found(tmp_path):
    """The right values of another drawing, with which the same file would be wrong."""
    for draw, fault in ((silent.drawn_table, silent.table_fault), (silent.drawn_trace, silent.trace_fault)):
        found = set()
        for i in range(6):
            content, suffix, *_ = draw(random.Random(f"1 {i}"))
            path = tmp_path / f"file{suffix}"
            path.write_bytes(content)
            found.add(fault(path, *draw(random.Random(f"2 {i}"))[2:]).split(":")[0])
        assert "wrong" in found
