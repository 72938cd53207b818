"""Some of the drawn tables and traces of `benchmarks/silent_errors.py`, which takes 10,000 and 2,000."""

import pytest
import silent_errors as silent


@pytest.mark.parametrize(
    ("draw", "fault", "count", "read"),
    [(silent.drawn_table, silent.table_fault, 80, 25), (silent.drawn_trace, silent.trace_fault, 12, 12)],
    ids=["tables", "traces"],
)
def test_a_drawn_file_is_read_as_it_was_drawn_or_refused_and_a_wrong_reader_found(draw, fault, count, read, tmp_path):
    counts = silent.variants(count, 1, draw, fault, tmp_path)
    assert counts["wrong"] == 0
    assert counts["read"] >= read

    def of_two(rng):
        """Draw a file, and the right values of another."""
        return *draw(rng)[:2], *draw(rng)[2:]

    assert silent.variants(6, 1, of_two, fault, tmp_path)["wrong"] > 0
