"""Workers of tests: forks of a process that has imported what each imports first, which takes a core six seconds.

From there on each does what it always does. One whose libraries would read other variables when they are loaded starts
as a program, as users' do, and so do ranks, and what notebooks and scripts start.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from importlib import import_module

from tclab import _child_process

IMPORTED = ("tclab.sweeps._worker", "tclab.sweeps._measure", "tclab.sweeps._race_points", "torch_geometric.utils")
FORKED = (["tclab.sweeps._worker", "1", "cpu"], ["tclab.timing._race_blocks"])
READ_WHEN_LOADED = ("MALLOC_", "OMP_", "MKL_", "LD_", "TORCH_")


def read_when_loaded(environment):
    return {name: value for name, value in environment.items() if name.startswith(READ_WHEN_LOADED)}


class Forks:
    """Has `subprocess.Popen` as `tclab._child_process` calls it; the first call starts the process that forks."""

    def __init__(self):
        self.process, self.ended, self._lock, self._unread = None, {}, threading.RLock(), b""

    def popen(self, command, *, env, stderr, **options):
        words = command[len(_child_process.child_command("")) - 1 :]
        if words not in FORKED or read_when_loaded(env) != read_when_loaded(os.environ):
            return subprocess.Popen(command, env=env, stderr=stderr, **options)
        with self._lock:
            if self.process is None:
                self._socket, theirs = socket.socketpair()
                path = os.pathsep.join([str(_child_process.SOURCE), os.path.dirname(__file__)])
                given = {**os.environ, "PYTHONPATH": path}
                start = [sys.executable, "-m", "forked", str(theirs.fileno())]
                self.process = subprocess.Popen(start, env=given, pass_fds=[theirs.fileno()], start_new_session=True)
                theirs.close()
            (stdin, requests), (messages, stdout) = os.pipe(), os.pipe()
            text = json.dumps({"words": words, "environment": dict(env), "folder": os.getcwd()}).encode()
            socket.send_fds(self._socket, [len(text).to_bytes(8, "big")], [stdin, stdout, stderr.fileno()])
            self._socket.sendall(text)
            os.close(stdin), os.close(stdout)
            while (pid := self._read()) is None:
                pass
            return Forked(self, pid, os.fdopen(requests, "wb"), os.fdopen(messages, "rb"))

    def _read(self):
        """Take a line of what the process says: return the pid of a new fork, or note the status of one that ended."""
        while b"\n" not in self._unread:
            said = self._socket.recv(4096)
            assert said, "the process that forks has ended"
            self._unread += said
        line, _, self._unread = self._unread.partition(b"\n")
        pid, *status = map(int, line.split())
        if not status:
            return pid
        self.ended[pid] = status[0]
        return None

    def status_of(self, pid, seconds):
        """Return how a fork ended; `None` after some seconds, or without an end of them where they are `None`."""
        with self._lock:
            while pid not in self.ended and (self._unread or select.select([self._socket], [], [], seconds)[0]):
                self._read()
            return self.ended.get(pid)

    def close(self):
        if self.process is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # to close it would not do: a loader's workers have copies of it
            self._socket.close()
            self.process.wait()


class Forked:
    """A fork, as `subprocess.Popen` has it."""

    def __init__(self, forks, pid, stdin, stdout):
        self._forks, self.pid, self.stdin, self.stdout = forks, pid, stdin, stdout

    def poll(self):
        return self._forks.status_of(self.pid, 0)

    def wait(self):
        return self._forks.status_of(self.pid, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdout.close()
        try:
            self.stdin.close()
        finally:
            self.wait()


def fork_when_asked(connection):
    """Return the words of a request, in a fork for it; the process itself ends with the tests."""
    ends, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        if ends in select.select([connection, ends], [], [])[0]:
            os.read(ends, 4096)
            with suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    connection.sendall(b"%d %d\n" % (ended[0], os.waitstatus_to_exitcode(ended[1])))
            continue
        length, standard, *_ = socket.recv_fds(connection, 8, 3)
        if not length:
            os._exit(0)
        request = json.loads(connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
        if pid := os.fork():
            for each in standard:
                os.close(each)
            connection.sendall(b"%d\n" % pid)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, each in enumerate(standard):
            os.dup2(each, number)
            os.close(each)
        os.close(ends), os.close(writes), connection.close()
        return request


def main():
    own = {os.getcwd(), *os.environ["PYTHONPATH"].split(os.pathsep)}
    installed = [folder for folder in sys.path if folder not in own]
    for module in IMPORTED:
        import_module(module)
    gc.freeze()
    request = fork_when_asked(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"] | {_child_process.PARENT: str(os.getppid())})
    os.chdir(request["folder"])
    tempfile.tempdir = None
    folders = [request["folder"], *os.environ["PYTHONPATH"].split(os.pathsep)]
    sys.path[:] = [*filter(None, folders), *installed]
    sys.argv = request["words"]
    _child_process.end_with_parent()
    import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
