"""The process that forks programs: it imports what they need, and then waits to be asked.

Each message on the socket that is its standard input is a JSON document with three descriptors or
four: standard output, standard error, where to write how the program ended, and standard input.
"""

import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

import mlx_lm.server  # noqa: F401

import omlx_cache.integrations.mlx_lm.serving  # noqa: F401

_MESSAGE = 1 << 20


def _serve(requests: socket.socket) -> None:
    """Fork what is asked for until nobody can ask any more; returns in each child too, to end."""

    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 512)
            _tell(running)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE, 4)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                for descriptor in (woken, wake, descriptors[2], *running.values()):
                    os.close(descriptor)
                _become(json.loads(message), *descriptors[:2], *descriptors[3:])
                return
            for descriptor in (*descriptors[:2], *descriptors[3:]):
                os.close(descriptor)
            running[pid] = descriptors[2]
            requests.send(str(pid).encode())


def _tell(running: dict[int, int]) -> None:
    """Write to those who wait for the children that have ended."""
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            descriptor = running.pop(pid)
            os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _become(asked: dict[str, Any], stdout: int, stderr: int, stdin: int | None = None) -> None:
    command, environment = asked["command"], asked["environment"]
    if stdin is None:
        stdin = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(command)
    if command[0] == "-c":
        del sys.argv[1]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=os.dup(0)))
