"""One of the ranks that run points together: started by torchrun as `python -m tclab.sweeps.rank`.

Rank 0 reads a request a line from standard input, as `tclab.sweeps.child` does, and hands it to the others. What
ranks say are JSON lines on standard output: each its `pid` at once, then what it is `at`, and how it `failed`;
rank 0 the file with the `rows`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tclab.sweeps.child import answers, end_with_parent, failed, limit_memory, prepared

if TYPE_CHECKING:
    from tclab.sweeps.together import Together

# What is said where another rank has gone: it is not this one's failure.
_OF_A_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out",
    "timeout",
    "nccl",
    "gloo",
    "tcpstore",
)


class _Voice:
    """Standard output, shared with other ranks: a line of up to 4096 bytes is written whole."""

    def __init__(self) -> None:
        self._out = answers().fileno

    def say(self, **what: Any) -> None:
        os.write(self._out(), (json.dumps({"rank": int(os.environ["RANK"]), **what}) + "\n").encode())


def _joined(device: str, store: Any) -> Together:
    """Join the other ranks in a process group for what the device is."""
    import torch
    from torch import distributed

    from tclab.sweeps.together import Together

    together = Together(store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    options: dict[str, Any] = {"backend": "gloo"}
    if device == "cuda":
        torch.cuda.set_device(together.local_rank)
        options = {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda", together.local_rank)}
    # whoever started the ranks finds one that hangs; a collective's own limit would name those that wait for it
    distributed.init_process_group(timeout=timedelta(days=1), **options)
    return together


def _tell(voice: _Voice, together: Together) -> None:
    """Say once a second what this rank is at, where that has changed."""

    def watch() -> None:
        before = -1
        while True:
            if together.entered != before:
                before = together.entered
                voice.say(entered=before, at=together.stage)
            time.sleep(1.0)

    threading.Thread(target=watch, daemon=True).start()


def _given(number: int, store: Any) -> str:
    """Return the next request on every rank; empty when there is none any more."""
    if os.environ["RANK"] == "0":
        text = sys.stdin.readline().strip()
        store.set(f"request/{number}", text)
        return text
    store.wait([f"request/{number}"], timedelta(days=30))
    found: bytes = store.get(f"request/{number}")
    return found.decode()


def _end_with_input() -> None:
    """End this rank when whoever asks has gone: standard input is a pipe that all ranks have, and one reads."""
    poll = select.poll()
    poll.register(0, 0)  # for its end alone

    def watch() -> None:
        while not poll.poll(500):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _of_a_peer(error: BaseException) -> bool:
    from torch import distributed

    words = str(error).lower()
    known = getattr(distributed, "DistError", ())
    return isinstance(error, known) or (isinstance(error, RuntimeError) and any(w in words for w in _OF_A_PEER))


def main() -> None:
    """Serve points until standard input ends."""
    voice = _Voice()
    voice.say(pid=os.getpid())
    end_with_parent()
    _end_with_input()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # where a rank that hangs is at
    limit_memory()
    from torch import distributed

    together: Together | None = None
    store, number = _store(), 0
    while text := _given(number, store):
        number += 1
        request = json.loads(text)
        try:
            if together is None:
                together = _joined(request["point"]["device"], store)
                _tell(voice, together)
            together.entered, together.stage = 0, "setting up"
            point, stamp = prepared(request)
            from tclab.sweeps.measure import measure

            rows = measure(point, together)
        except BaseException as error:
            traceback.print_exc()
            voice.say(failed=failed(error)[:1000], peer=_of_a_peer(error))
            os._exit(1)  # what the others are at cannot be taken up again
        if together.rank == 0:
            voice.say(rows=_kept([{**row, **stamp} for row in rows]))
    if together is not None:
        distributed.destroy_process_group()


def _kept(rows: list[dict[str, Any]]) -> str:
    """Return the file that rows were written to: they are too long for a line that others might speak into."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(rows, file)
    return file.name


def _store() -> Any:
    """Return a connection of its own to torchrun's store: one that waits would hold up the process group."""
    from torch import distributed

    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return distributed.TCPStore(*where, is_master=False, timeout=timedelta(minutes=5))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
