"""The command `drimed` in forks of one process that has imported it already, so that a page of commands runs fast.

A client passes its arguments, folder, environment and standard streams to the server, and ends as its fork ends.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from drimed.cli.console import console
from drimed.cli.main import main
from tests.trial import workers

CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
sys.exit(server.recv(1)[0])
"""


@contextmanager
def commands(folder: Path) -> Iterator[Path]:
    """A folder with the command, for PATH; while the block lasts."""
    address, command = folder / "socket", folder / "drimed"
    command.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    command.chmod(0o755)
    with subprocess.Popen([sys.executable, "-m", "tests.forked", str(address)], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.read(1) == b"."  # it listens
            yield folder
        finally:
            server.kill()


def serve(address: str) -> None:
    """Import everything and load the kernels; then fork for every client."""
    import drimed

    for module in pkgutil.walk_packages(drimed.__path__, "drimed."):
        import_module(module.name)
    workers.warm()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    os.write(1, b".")
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            _answer(client)
        client.close()


def _answer(client: socket.socket) -> None:
    """Run one command in a child of this fork, and tell the client how it ended."""
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    whole = client.makefile("rb").read(int.from_bytes(size, "big"))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        client.sendall(bytes([os.waitstatus_to_exitcode(status) & 255]))
        os._exit(0)
    arguments, folder, environment = json.loads(whole)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["drimed", *arguments]
    console.width = int(environment.get("COLUMNS", 80))
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    # What ends its workers is done; to take the whole interpreter down would take longer than most commands.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve(sys.argv[1])
