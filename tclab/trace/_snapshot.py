"""torch's memory snapshot, read in a stream: a pickle of which only plain containers, texts and numbers are admitted.

Nothing in the file is ever called or imported. This reads the opcodes that plain data is made of and refuses every
other one, so a file that would run code when it is opened as a pickle is an error here. Events are handed on as they
come and are then forgotten, so that hardly any memory grows with the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tclab.trace._read_trace import TraceError

PIECE = 1 << 20
AHEAD = 64  # bytes that an opcode and its fixed argument fit in
LONGEST = 64 << 20  # of one text; a real one has some hundred
_KNOWN = rb"(?:h.|j.{4})"  # what the memo has: BINGET, LONG_BINGET
_LONG = b"|".join(rb"\x0%d.{%d}" % (size, size) for size in range(1, 9))
_TEXT = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(40))
_GETS = re.compile(_KNOWN, re.DOTALL)
_VALUE = rb"(%s|K.|M..|J.{4}|\x8a(?:%s)|\x8c(?:%s)\x94|\]\x94(?:\(%s*+e)?)" % (_KNOWN, _LONG, _TEXT, _KNOWN)


class Frame(NamedTuple):
    """A line of a stack."""

    filename: str
    line: int
    name: str


class Snapshot(NamedTuple):
    """What a snapshot holds beside its events: segments with their blocks; and the number of each device's list."""

    segments: list[dict[str, Any]]
    devices: dict[int, int]  # the list that an event was in -> the device's index


Stack = tuple[Frame, ...]  # equal stacks of a file's events are one object, which lives as long as it is read
OnEvent = Callable[[int, dict[str, Any]], None]  # the number of the list that it is in, and the event


def read_snapshot(path: Path, on_event: OnEvent) -> Snapshot:
    """Hand a snapshot's events on, in their order, and return the rest.

    **Arguments:**

    - `path`: what `torch.cuda.memory._dump_snapshot` wrote, or the same as JSON.
    - `on_event`: called for each entry of `device_traces`; its `frames` are a `Stack`.

    **Raises:** `TraceError` for a file that is neither, or a pickle with anything but plain data.
    """
    with path.open("rb") as file:
        first = file.read(1)
    if first in (b"{", b"[", b" ", b"\n"):
        return _from_json(path, on_event)
    if first != b"\x80":
        raise TraceError(
            f"{path}: is no memory snapshot; expected what torch.cuda.memory._dump_snapshot writes, or JSON"
        )
    try:
        top, lists = _walk(path, on_event)
    except TraceError:
        raise
    except (LookupError, struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: is a damaged pickle ({type(error).__name__}: {error})") from error
    return _checked(path, top, lists)


def _checked(path: Path, top: Any, lists: dict[int, int]) -> Snapshot:
    if not isinstance(top, dict) or not isinstance(top.get("device_traces"), list):
        raise TraceError(f"{path}: has no device_traces; expected torch.cuda.memory._snapshot, recorded with history")
    devices = {lists[id(found)]: index for index, found in enumerate(top["device_traces"]) if id(found) in lists}
    return Snapshot(_dicts(top.get("segments")), devices)


def _from_json(path: Path, on_event: OnEvent) -> Snapshot:
    try:
        top = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: is no JSON of a memory snapshot ({error})") from error
    found = top.get("device_traces") if isinstance(top, dict) else None
    lists: dict[int, int] = {}
    stacks: dict[Stack, Stack] = {}
    for number, events in enumerate(found if isinstance(found, list) else []):
        lists[id(events)] = number
        for event in _dicts(events):
            stack = tuple(_frames(event.get("frames")))
            on_event(number, {**event, "frames": stacks.setdefault(stack, stack)})
    for segment in _dicts(top.get("segments")) if isinstance(top, dict) else []:
        for block in _dicts(segment.get("blocks")):
            block["frames"] = _frames(block.get("frames"))
    return _checked(path, top, lists)


def _dicts(found: Any) -> list[dict[Any, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _frames(frames: Any) -> list[Frame]:
    return [_frame(frame) for frame in _dicts(frames)]


def _frame(frame: dict[Any, Any]) -> Frame:
    line = frame.get("line")
    return Frame(str(frame.get("filename", "")), line if isinstance(line, int) else 0, str(frame.get("name", "")))


def _like(event: Iterable[Any], memo: list[Any]) -> re.Pattern[bytes] | None:
    """Return what matches the bytes of the next event with the same keys, with a group for each value."""
    pattern = rb"\}\x94\("
    for key in event:
        place = next((place for place, one in enumerate(memo) if one is key), None)
        if place is None:
            return None
        get = bytes([0x68, place]) if place < 256 else struct.pack("<BI", 0x6A, place)
        pattern += re.escape(get) + _VALUE
    return re.compile(pattern + b"u", re.DOTALL)


def _walk(path: Path, on_event: OnEvent) -> tuple[Any, dict[int, int]]:
    """Run the plain opcodes of a pickle; return its value, and id of each list with events -> its number.

    An event's dict is handed on when it is whole, and dropped: where it stood is `None`, and its place in the memo is
    empty. A frame's dict becomes a `Frame`, and a list of them that an event has a `Stack`, which others may share.

    Nearly all of a file are events with the keys of the one before and with frames that the memo has. The next of that
    form is found as a whole by a pattern; one of any other form goes through the opcodes, as everything else does.
    """
    file = path.open("rb")
    data, at, base = file.read(PIECE), 0, 0
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: list[Any] = []
    stacks: dict[tuple[int, ...], Stack] = {}
    runs: dict[bytes, Stack] = {}  # the bytes of a list of known frames -> the stack
    likes: dict[tuple[Any, ...], re.Pattern[bytes] | None] = {}
    like: re.Pattern[bytes] | None = None  # the last event's
    keys: tuple[Any, ...] = ()
    number_of: dict[int, int] = {}  # id of a container -> its number in the memo
    lists: dict[int, int] = {}
    unpack_int, unpack_short = struct.Struct("<i").unpack_from, struct.Struct("<H").unpack_from
    unpack_long, unpack_eight = struct.Struct("<I").unpack_from, struct.Struct("<Q").unpack_from
    unpack_real = struct.Struct(">d").unpack_from

    def refused(what: str) -> TraceError:
        return TraceError(
            f"{path}: has {what} at byte {base + at - 1}, which plain data does not; a memory snapshot is read "
            "without running anything in it"
        )

    def value(piece: bytes, fresh: list[Any]) -> Any:
        """Return what the opcodes of an event's value give, and add to `fresh` what the memo then has more."""
        code = piece[0]
        if code == 0x4A:
            return unpack_int(piece, 1)[0]
        if code == 0x68:
            return memo[piece[1]]
        if code == 0x8A:
            return int.from_bytes(piece[2:], "little", signed=True)
        if code == 0x5D:
            known = runs.get(piece)
            if known is None:
                places = [m[1] if m[0] == 0x68 else unpack_long(m, 1)[0] for m in _GETS.findall(piece, 3)]
                frames = tuple([one for one in map(memo.__getitem__, places) if type(one) is Frame])
                runs[piece] = known = stacks.setdefault(tuple(map(id, frames)), frames)
            fresh.append(known)
            return known
        if code == 0x8C:
            fresh.append(piece[2:-1].decode("utf-8", "surrogatepass"))
            return fresh[-1]
        return memo[unpack_long(piece, 1)[0]] if code == 0x6A else int.from_bytes(piece[1:], "little")

    with file:
        while True:
            if len(data) - at < AHEAD:
                base += at
                data, at = data[at:] + file.read(PIECE), 0
            code = data[at]
            at += 1
            if code == 0x6A:  # LONG_BINGET
                stack.append(memo[unpack_long(data, at)[0]])
                at += 4
            elif code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x94 or code == 0x71 or code == 0x72:  # MEMOIZE, BINPUT, LONG_BINPUT
                if code == 0x94:
                    place = len(memo)
                elif code == 0x71:
                    place, at = data[at], at + 1
                else:
                    place, at = unpack_long(data, at)[0], at + 4
                top = stack[-1]
                if place > len(memo) + LONGEST:
                    raise refused(f"a memo of {place:,} values")
                if place >= len(memo):
                    memo.extend([None] * (place + 1 - len(memo)))
                else:
                    runs.clear()
                memo[place] = top
                if type(top) is dict or type(top) is list:
                    number_of[id(top)] = place
            elif code == 0x28:  # MARK
                marks.append(stack)
                stack = []
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x4D:  # BININT2
                stack.append(unpack_short(data, at)[0])
                at += 2
            elif code == 0x4A:  # BININT
                stack.append(unpack_int(data, at)[0])
                at += 4
            elif code == 0x8A:  # LONG1
                size = data[at]
                if len(data) - at <= size:
                    base += at
                    data, at = data[at:] + file.read(PIECE), 0
                stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
                at += 1 + size
            elif code == 0x7D:  # EMPTY_DICT
                number = lists.get(id(marks[-1][-1])) if like is not None and marks and marks[-1] else None
                found = like.match(data, at - 1) if like is not None and number is not None else None
                if found is not None and number is not None:
                    fresh: list[Any] = [None]  # the event's place in the memo
                    event = dict(zip(keys, [value(piece, fresh) for piece in found.groups()], strict=True))
                    if type(event["frames"]) is tuple:
                        at = found.end()
                        memo += fresh
                        on_event(number, event)
                        stack.append(None)
                        continue
                stack.append({})
            elif code == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif code == 0x75 or code == 0x73:  # SETITEMS, SETITEM
                if code == 0x75:
                    items, stack = stack, marks.pop()
                else:
                    items = stack[-2:]
                    del stack[-2:]
                target = stack[-1]
                target.update(zip(items[::2], items[1::2], strict=True))
                if "action" in target and "size" in target:
                    frames = target.get("frames")
                    by_itself = len(stack) > 1 and type(stack[-2]) is list  # the one event of its list
                    holder = id(stack[-2] if by_itself else marks[-1][-1])
                    if type(frames) is list:
                        known = tuple(map(id, frames))
                        if known not in stacks:
                            stacks[known] = tuple([one for one in frames if type(one) is Frame])
                        target["frames"] = stacks[known]
                        if (place := number_of.pop(id(frames), -1)) >= 0:
                            memo[place] = stacks[known]
                    elif type(frames) is not tuple:
                        target["frames"] = ()
                    on_event(lists.setdefault(holder, len(lists)), target)
                    if (keys := tuple(target)) not in likes:
                        likes[keys] = _like(target, memo)
                    like = likes[keys]
                    if (place := number_of.pop(id(target), -1)) >= 0:
                        memo[place] = None
                    stack[-1] = None
                elif "filename" in target and "line" in target:
                    stack[-1] = _frame(target)
                    if (place := number_of.pop(id(target), -1)) >= 0:
                        memo[place] = stack[-1]
            elif code == 0x65 or code == 0x61:  # APPENDS, APPEND
                if code == 0x65:
                    items, stack = stack, marks.pop()
                else:
                    items = [stack.pop()]
                target = stack[-1]
                if type(target) is not list:
                    raise refused("an append to no list")
                if items and items[0] is None and id(target) in lists:
                    continue  # events that were handed on
                target.extend(items)
            elif code == 0x8C or code == 0x58 or code == 0x8D or code == 0x43 or code == 0x42:  # texts and bytes
                if code == 0x8C or code == 0x43:
                    size, at = data[at], at + 1
                elif code == 0x8D:
                    size, at = unpack_eight(data, at)[0], at + 8
                else:
                    size, at = unpack_long(data, at)[0], at + 4
                if size > LONGEST:
                    raise refused(f"a text of {size:,} bytes")
                if len(data) - at < size:
                    base += at
                    data, at = data[at:] + file.read(PIECE + size), 0
                text = data[at : at + size]
                if len(text) < size:
                    raise TraceError(f"{path}: ends in the middle of a text, at byte {base + at}")
                stack.append(text if code in (0x43, 0x42) else text.decode("utf-8", "surrogatepass"))
                at += size
            elif code == 0x4E:  # NONE
                stack.append(None)
            elif code == 0x88 or code == 0x89:  # NEWTRUE, NEWFALSE
                stack.append(code == 0x88)
            elif code == 0x47:  # BINFLOAT
                stack.append(unpack_real(data, at)[0])
                at += 8
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif code in (0x85, 0x86, 0x87):  # TUPLE1, 2, 3
                size = code - 0x84
                stack[-size:] = [tuple(stack[-size:])]
            elif code == 0x74:  # TUPLE
                items, stack = stack, marks.pop()
                stack.append(tuple(items))
            elif code == 0x80:  # PROTO
                at += 1
            elif code == 0x95:  # FRAME
                at += 8
            elif code == 0x2E:  # STOP
                return stack.pop(), lists
            else:
                raise refused(f"the opcode {code:#04x}")
