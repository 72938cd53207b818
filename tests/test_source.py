"""The door for a user's file: whatever is wrong with it is one sentence, in little memory and without waiting."""

import gzip
import io
import os
import zipfile
from contextlib import nullcontext

import pytest

from tclab._source import guarded, opened
from tclab.errors import InputError


class DoorError(InputError):
    pass


def read(path):
    with opened(path, "a list", DoorError) as content:
        return content


def zipped(**files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


TEXT = b"one\ntwo\n"
LONG = os.urandom(1 << 20).hex().encode()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (TEXT, TEXT),
        (b"\xef\xbb\xbf" + TEXT, TEXT),
        (gzip.compress(TEXT), TEXT),
        (gzip.compress(TEXT) + gzip.compress(TEXT) + b"\0" * 9, 2 * TEXT),  # several members, then the pad of a tape
        (zipped(**{"list.txt": TEXT, "__MACOSX/._list.txt": b"\0"}), TEXT),
        (LONG, LONG),
        (gzip.compress(LONG, 1), LONG),
    ],
    ids=["plain", "byte order mark", "gzip", "gzip of two members", "zip", "long", "long gzip"],
)
def test_a_file_is_unpacked_whatever_its_name(tmp_path, content, text):
    (tmp_path / "list.txt").write_bytes(content)
    assert read(tmp_path / "list.txt") == text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(LONG)[:-9], "is cut short"),
        (gzip.compress(TEXT)[:-8] + b"12345678", "is damaged"),
        (gzip.compress(LONG)[:2000] + b"\1" * 2000, "is damaged|is cut short"),
        (zipped(a=TEXT)[:40], "is another kind of file, or is damaged or cut short"),
        (zipped(a=TEXT, b=TEXT), "is a ZIP of 2 files, expected one: a, b"),
        (zipped(**{"[Content_Types].xml": TEXT, "sheet": TEXT}), "is a workbook of Excel; save its sheet as text"),
        (TEXT + b"\0", "byte 9 is NUL"),
        ("one".encode("utf-16"), "byte 4 is NUL: the file has a hole, or is not text in UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_whole_file_is_refused_in_a_sentence(tmp_path, content, why):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(DoorError, match=rf"list\.txt: ({why}).* \(read as a list\)$"):
        read(tmp_path / "list.txt")


def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "list.txt"
    for content in (gzip.compress(TEXT), zipped(a=TEXT)):
        path.write_bytes(content)
        monkeypatch.setattr("tclab._source.LIMIT_BYTES", 7)
        with pytest.raises(DoorError, match="unpacks to more than 7 bytes, the limit; cut out the rows"):
            read(path)
        monkeypatch.setattr("tclab._source.LIMIT_BYTES", 8)
        assert read(path) == TEXT


def test_what_unpacks_to_many_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tclab._source._SMALL_BYTES", 100_000)
    for size, refused in ((100_000, False), (1_000_000, True)):
        (tmp_path / "list.txt").write_bytes(gzip.compress(b" " * size))
        with pytest.raises(DoorError, match=r"unpacks to \d{3} times its size") if refused else nullcontext():
            read(tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lst.txt", r"no such file; did you mean 'list\.txt'\?"),
        ("folder", "is a folder, expected a file"),
        ("fifo", "is neither a file nor a folder"),  # which would wait for ever
        ("/dev/zero", "is neither a file nor a folder"),
        ("no\0path", "embedded null byte"),
        ("x" * 999, "cannot be read: File name too long"),
        ("list.txt/x", "cannot be read: Not a directory"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path, name, why):
    (tmp_path / "list.txt").write_bytes(TEXT)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DoorError, match=why):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (ValueError("line 3: weight\n is 'x'"), r"line 3: weight is 'x'"),
        (KeyError("reactions"), "KeyError: 'reactions'"),
        (RecursionError("maximum depth"), r"is nested too deeply \(maximum depth\)"),
        (MemoryError(), "needs more memory than there is"),
        (UnicodeDecodeError("utf-8", b"ab\xe9", 2, 3, "invalid"), "byte 0xe9 is not UTF-8; save it as UTF-8"),
        (PermissionError(13, "Permission denied"), "cannot be read: Permission denied"),
        (ValueError("x" * 10_000), "x{399}…"),
    ],
)
def test_whatever_a_parser_raises_is_one_sentence_and_its_cause_is_chained(cause, why):
    with (
        pytest.raises(DoorError, match=rf"^list\.txt: {why} \(read as a list\)$") as error,
        guarded("list.txt", "a list", DoorError),
    ):
        raise cause
    assert error.value.__cause__ is cause


def test_a_sentence_and_an_interruption_pass():
    for each in (InputError("threshold is -1"), KeyboardInterrupt()):
        with pytest.raises(type(each)) as error, guarded("list.txt", "a list", DoorError):
            raise each
        assert error.value is each
