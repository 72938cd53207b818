"""Events of a trace file, decoded in slices, so that a large trace is never in memory as objects.

A slice of the `traceEvents` list is cut at some `}, {` and decoded as a list of its own. A cut may fall
inside a string or a nested list; then the slice is not valid JSON and another cut is tried. A slice that
starts at an event and *is* valid JSON ends at an event, so a wrong cut can never pass.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from tclab._io import is_bomb
from tclab.errors import InputError


class TraceError(InputError):
    """A file or folder that cannot be read as a torch.profiler trace; the message gives the place and the reason."""


SLICE_BYTES = 2 << 20  # a slice's events fit a processor's cache, approximately
TAIL_BYTES = 64 << 10  # how far before a slice's end a cut is searched
MOST_BYTES = 128 << 20  # of text without one whole event; a real one has some hundred, and with its stack some thousand
CUTS_TRIED = 4  # before the slice is doubled instead
STARTS_TRIED = 32  # places where the word `traceEvents` may occur before the list itself

_CUT = re.compile(rb"\}\s*,\s*\{")
_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_AT_BYTE = re.compile(r" ?\(byte (\d+)\)")


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "collective": "Collective name",
        "group": "Process Group Name",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "device_id": "Device Id",
        "memory_bytes": "Bytes",
        "address": "Addr",
        "python_id": "Python id",
    },
):
    """The arguments of an event that the analysis uses; the decoder skips the rest."""

    correlation: Any = None
    bytes: Any = None
    size: Any = None
    collective: Any = None
    group: Any = None
    allocated: Any = None
    reserved: Any = None
    device_type: Any = None
    device_id: Any = None
    memory_bytes: Any = None
    address: Any = None
    python_id: Any = None


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`. Types are checked later, because real files disagree about them."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class Head(msgspec.Struct):
    """The keys next to `traceEvents` that describe how a trace was made."""

    schemaVersion: Any = None
    distributedInfo: Any = None
    deviceProperties: Any = None
    baseTimeNanoseconds: Any = None
    record_shapes: Any = None
    with_stack: Any = None
    profile_memory: Any = None
    tclab_record: Any = None


class _Tail(Head):
    traceEvents: msgspec.Raw = msgspec.Raw(b"[]")


_EVENTS = msgspec.json.Decoder(list[Event])
_LOOSE_EVENTS = msgspec.json.Decoder(list[Any])
_HEAD = msgspec.json.Decoder(Head)
_TAIL = msgspec.json.Decoder(_Tail)


class _Text:
    """The part of the decompressed text that has been read and not yet used, with its position in the file."""

    def __init__(self, path: Path, file: IO[bytes], packed: IO[bytes] | None = None) -> None:
        self.path, self.file, self.packed = path, file, packed
        self.data = b""
        self.dropped = 0
        self.lines_dropped = 0
        self.done = False

    def grow(self, size: int) -> None:
        """Read until `size` bytes are available or the file ends.

        **Raises:** `TraceError` for more bytes than a slice may have, and for a gzip that no trace has.
        """
        if size > MOST_BYTES:
            raise TraceError(
                f"{self.path}: has {len(self.data):,} bytes of text from byte {self.dropped} on without the end of an "
                "event; expected a torch.profiler trace"
            )
        parts = [self.data]
        missing = size - len(self.data)
        while missing > 0 and not self.done:
            try:
                part = self.file.read(missing)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                read = self.dropped + sum(map(len, parts))
                raise TraceError(
                    f"{self.path}: the gzip data is cut short or damaged after {read} bytes ({error})"
                ) from error
            self.done = not part
            parts.append(part)
            missing -= len(part)
            read = self.dropped + size - missing
            if self.packed is not None and is_bomb(read, self.packed.tell()):
                times = read // max(self.packed.tell(), 1)
                raise TraceError(f"{self.path}: unpacks to {times:,} times its size or more, which no trace does")
        self.data = b"".join(parts)

    def drop(self, count: int) -> None:
        self.lines_dropped += self.data.count(b"\n", 0, count)
        self.dropped += count
        self.data = self.data[count:]

    def error(self, what: str, at: int) -> TraceError:
        before = self.data[:at]
        line = self.lines_dropped + before.count(b"\n") + 1
        column = at - (before.rfind(b"\n") + 1) + 1
        return TraceError(
            f"{self.path}: not valid JSON at byte {self.dropped + at} (line {line}, column {column}): {what}"
        )


def event_slices(path: Path, head: dict[str, Any]) -> Iterator[list[Event]]:
    """Yield the events of one trace file, gzipped or not, in slices, and fill `head` with what is next to them.

    **Raises:** `TraceError` for a file that is no trace, with the position where its JSON breaks.
    """
    with _opened(path) as text:
        start, bare_list = _head_end(text, head)
        text.drop(start)
        yield from _slices(text, head, bare_list)


def head_and_rest(path: Path) -> Iterator[bytes]:
    """Yield the text of a trace file in pieces: first everything up to the first event, then the rest.

    **Raises:** `TraceError` for a file that is no trace.
    """
    with _opened(path) as text:
        start, _ = _head_end(text, {})
        yield text.data[:start]
        text.drop(start)
        while text.data:
            yield text.data
            text.drop(len(text.data))
            text.grow(SLICE_BYTES)


@contextmanager
def _opened(path: Path) -> Iterator[_Text]:
    try:
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: is no file")
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror})") from error
    except ValueError as error:
        raise TraceError(f"{str(path)!r}: is no path ({error})") from None
    with file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        text = _Text(path, gzip.GzipFile(fileobj=file), file) if is_gzip else _Text(path, file)  # type: ignore[arg-type]
        text.grow(SLICE_BYTES)
        if text.data.startswith(b"\xef\xbb\xbf"):  # a byte order mark, from editors on Windows
            text.drop(3)
        yield text


def _head_end(text: _Text, head: dict[str, Any]) -> tuple[int, bool]:
    """Return the position of the first event, and whether the file is a bare list of events."""
    blank = len(text.data) - len(text.data.lstrip())
    if text.data[blank : blank + 1] == b"[":
        return blank + 1, True
    seen, tried = 0, 0
    while True:
        for found in _LIST_START.finditer(text.data, seen):
            seen, tried = found.end(), tried + 1
            if tried > STARTS_TRIED:
                raise TraceError(f"{text.path}: `traceEvents` occurs in {tried} places, none at the top level")
            try:
                start = _HEAD.decode(text.data[: found.end()] + b"]}")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # the word is in a string or deeper inside
            _merge(head, start)
            return found.end(), False
        if text.done:
            raise _no_trace(text)
        text.grow(2 * len(text.data))


def _no_trace(text: _Text) -> TraceError:
    if not text.data.strip():
        return TraceError(f"{text.path}: is empty")
    try:
        keys = msgspec.json.decode(text.data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return TraceError(f"{text.path}: is JSON but no object with a `traceEvents` list")
    except msgspec.DecodeError as error:
        return _broken(text, error, 0, text.data)
    except (UnicodeDecodeError, RecursionError) as error:
        return TraceError(f"{text.path}: cannot be decoded as JSON ({error})")
    named = ", ".join(list(keys)[:8]) or "none"
    return TraceError(f"{text.path}: is JSON without a `traceEvents` list; its keys are: {named[:300]}")


def _slices(text: _Text, head: dict[str, Any], bare_list: bool) -> Iterator[list[Event]]:
    wanted = SLICE_BYTES
    while True:
        text.grow(wanted)
        if text.done:
            break
        cuts = list(_CUT.finditer(text.data, max(0, len(text.data) - TAIL_BYTES)))
        for cut in cuts[: -CUTS_TRIED - 1 : -1]:
            events = _decode(text, b"[" + text.data[: cut.start() + 1] + b"]")
            if events is not None:
                yield events
                del events
                text.drop(cut.end() - 1)
                wanted = SLICE_BYTES
                break
        else:
            wanted = 2 * len(text.data)
    if bare_list:
        # other writers than Kineto may omit the closing bracket, which the Chrome format allows
        rest = text.data.rstrip()
        last = _decode(text, b"[" + rest if rest.endswith(b"]") else b"[" + rest.rstrip(b",") + b"]", last=True)
        yield last or []
    else:
        yield _decode_tail(text, head)


def _decode(text: _Text, data: bytes, last: bool = False) -> list[Event] | None:
    """Return the events of one slice; None where the slice was cut at a wrong place."""
    try:
        try:
            return _EVENTS.decode(data)
        except msgspec.ValidationError:
            return _as_events(_LOOSE_EVENTS.decode(data))
    except msgspec.ValidationError as error:
        raise TraceError(f"{text.path}: {error} (counted from byte {text.dropped})") from error
    except msgspec.DecodeError as error:
        # A wrong cut breaks the JSON only at the very end of the slice; anything earlier is invalid.
        at = _AT_BYTE.search(str(error))
        if last or (at is not None and int(at[1]) < len(data) - 2):
            raise _broken(text, error, 1, data) from error
        return None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TraceError(f"{text.path}: cannot be decoded near byte {text.dropped} ({error})") from error


def _decode_tail(text: _Text, head: dict[str, Any]) -> list[Event]:
    prefix = b'{"traceEvents":['
    data = prefix + text.data
    try:
        tail = _TAIL.decode(data)
    except msgspec.DecodeError as error:
        raise _broken(text, error, len(prefix), data) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TraceError(f"{text.path}: cannot be decoded near byte {text.dropped} ({error})") from error
    _merge(head, tail)
    return _decode(text, bytes(tail.traceEvents), last=True) or []


def _as_events(entries: list[Any]) -> list[Event]:
    """Return entries of any shape as events; one that is no object becomes an empty event, counted as left out."""
    events = []
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        args = fields.get("args")
        plain = {key: fields.get(key) for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
        kept = msgspec.convert(args, Args) if isinstance(args, dict) else None
        events.append(Event(**plain, args=kept))
    return events


def _broken(text: _Text, error: msgspec.DecodeError, prefix: int, data: bytes) -> TraceError:
    at = _AT_BYTE.search(str(error))
    if at is None:
        return text.error("the file ends in the middle of a value", len(text.data))
    position = min(max(int(at[1]) - prefix, 0), len(text.data))
    found = data[int(at[1]) : int(at[1]) + 12].decode("utf-8", "replace")
    what = _AT_BYTE.sub("", str(error)).removeprefix("JSON is malformed: ")
    return text.error(f"{what}, found {found!r}", position)


def _merge(head: dict[str, Any], found: Head) -> None:
    for key in Head.__struct_fields__:
        value = getattr(found, key)
        if value is not None:
            head[key] = value
