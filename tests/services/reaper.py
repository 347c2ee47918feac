"""Ends a server and removes its folder once the owner is gone: started by ``Server``, run as a program of its own.

It reads words from its standard input: ``watch PID``, then ``forget`` once that process has ended. End of input means
that the owner is gone, however it died (a pipe closes even after SIGKILL); what is still watched is ended then. It
says ``ready`` once it listens.

    python -P reaper.py FOLDER SIGNAL
"""

import shutil
import sys

import psutil

#: Seconds that a server gets to end by itself.
PATIENCE = 5.0


def end(server: psutil.Process, signal: int) -> None:
    """Ask politely, then SIGKILL the server and its children; psutil compares start times, so no stranger is hit."""
    try:
        family = [server, *server.children(recursive=True)]
        server.send_signal(signal)
    except psutil.NoSuchProcess:
        return
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=PATIENCE)


def _watched(pid: int) -> psutil.Process | None:
    """The process of this id, or None where it ended before we looked."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def reap(folder: str, signal: int) -> None:
    """Read until the owner closes the pipe or dies; then leave neither a process nor the folder."""
    server: psutil.Process | None = None
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        server = _watched(int(rest[0])) if word == "watch" else None
    if server is not None:
        end(server, signal)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    reap(sys.argv[1], int(sys.argv[2]))
