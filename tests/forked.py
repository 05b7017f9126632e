"""The command `drimed` in forks of one process that has imported it already, so that a page of commands runs fast.

A client passes its arguments, folder, environment and standard streams to the server, and ends as its fork ends.
"""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

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
    """Import everything but the command line, whose width depends on the environment; then fork for every client."""
    import drimed

    for module in pkgutil.walk_packages(drimed.__path__, "drimed."):
        if not module.name.startswith("drimed.cli"):
            import_module(module.name)
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
    from drimed.cli.main import main

    main()
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1])
