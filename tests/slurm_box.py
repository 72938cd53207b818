"""A Slurm of one's own in a temporary folder: munge, a controller and two nodes, all on this machine."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

USER = pwd.getpwuid(os.getuid()).pw_name
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun", "sinfo", "scontrol")
_CONFIGURATION = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=2000
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes=n1 MaxTime=INFINITE State=UP
"""


def missing():
    """Return why there can be no Slurm here, or None."""
    where = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    lacking = [program for program in _PROGRAMS if shutil.which(program, path=where) is None]
    return f"Slurm is not installed here (no {', '.join(lacking)}; Debian: slurm-wlm, munge)" if lacking else None


def _free_ports(number):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def wait_for(what, found, seconds=120, words=lambda: ""):
    """Return what `found` returns as soon as it is true; fail with what was waited for after so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.1)
    pytest.fail(f"waited {seconds} s for {what}: {words()}")


@contextmanager
def slurm(folder: Path):
    """Start a Slurm in a folder, set SLURM_CONF and PATH, and end every process of it."""
    started = []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))
        environment.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            _start(folder, started)
            yield
        finally:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(["scancel", "--full", "-u", USER], capture_output=True, timeout=30)
                end = time.monotonic() + 20
                while time.monotonic() < end and output("squeue", "-h"):
                    time.sleep(0.2)
            for process in reversed(started):
                _end(process)


def _start(folder, started):
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)

    def start(*command):
        log = (folder / f"{Path(command[0]).name}.out").open("ab")
        started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        log.close()

    start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}",
          f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed")  # fmt: skip
    wait_for("munged", (folder / "munge.socket").exists, words=lambda: _logs(folder))
    controller, first, second = _free_ports(3)
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(
            name=f"box{controller}", host=socket.gethostname().split(".")[0], user=USER,
            folder=folder, controller=controller, first=first, second=second,
        )
    )  # fmt: skip
    start("slurmctld", "-D")
    for node in ("n1", "n2"):
        start("slurmd", "-D", "-N", node)
    nodes = ("sinfo", "-h", "-N", "-p", "debug", "-o", "%t")
    wait_for("two idle nodes", lambda: output(*nodes).split() == ["idle", "idle"], words=lambda: _logs(folder))


def output(*command):
    """Return what a command of Slurm prints; nothing where it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except subprocess.TimeoutExpired:
        return ""


def _logs(folder):
    return "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in folder.glob("*.out"))


def _end(process):
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
