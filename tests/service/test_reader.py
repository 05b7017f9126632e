"""Files that are made to harm: they are read in a process that can be killed, and the service always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from drimed.errors import BatchError, DrimedError, InputError, UnconfirmedError, UnknownNameError
from drimed.records import Fault
from drimed.service import auth
from drimed.service.runtime import MEMORY, Reader
from drimed.service.settings import Settings
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from tests.service.pages.visiting import Visitor
from tests.service.serving import PATIENCE, free_port, served, wait_until
from tests.trial.drawn_workbooks import LINKS, inline, number, packed, unpacked, workbook
from tests.trial.trials import SMALL

ENDLESS = """
import sys, threading, time
from drimed.service import app, runtime
from drimed.service.settings import Settings
app.CLOSING = 1.0
runtime.Service.close = lambda self: time.sleep(600)
app.run(Settings(store=sys.argv[1], port=int(sys.argv[2]), grace=1))
"""


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(30.0)
    yield made
    made.close()


def test_what_it_reads_is_what_is_read_here(reader: Reader) -> None:
    data = workbook([[inline("decision"), inline("yield")], [number(1), number(0.85, 1)]], ["0%"])
    assert reader.run(read, data, "s.xlsx") == read(data, "s.xlsx")
    with pytest.raises(InputError, match="is damaged"):
        reader.run(read, data[:200], "s.xlsx")


def test_one_that_takes_too_long_is_killed_and_the_next_file_is_read(reader: Reader) -> None:
    assert reader.run(len, "abc") == 3
    reader.seconds = 0.2
    start = time.monotonic()
    with pytest.raises(InputError, match=r"took more than 0\.2 s"):
        reader.run(time.sleep, 60)
    assert time.monotonic() - start < 5
    reader.seconds = 30.0
    assert reader.run(len, "abc") == 3


def test_one_that_dies_is_an_error_with_words_and_the_next_file_is_read(reader: Reader) -> None:
    with pytest.raises(InputError, match="the process that did it died"):
        reader.run(os._exit, 1)
    assert reader.run(len, "abc") == 3


def test_one_that_needs_too_much_memory_says_so_and_the_next_file_is_read(reader: Reader) -> None:
    with pytest.raises(InputError, match="too much memory"):
        reader.run(bytearray, 2 * MEMORY)
    assert reader.run(len, "abc") == 3


def test_it_ends_where_nobody_waits_for_it(reader: Reader) -> None:
    reader.seconds = 0.1
    reader._start().send((time.sleep, (60,)))
    assert reader._process is not None
    reader._process.join(PATIENCE)
    assert reader._process.exitcode == -signal.SIGALRM


def test_files_of_one_caller_are_read_one_at_a_time_and_others_do_not_wait_for_them(tmp_path: Path) -> None:
    """Each file names its largest part 500 times; three come at once with a token for outcomes alone."""
    link = f'<Relationship Id="r" Type="{LINKS}/sharedStrings" Target="sharedStrings.xml"/>' * 500
    parts = unpacked(workbook([[inline("a")]], texts=["x" * 12_000_000]))
    harmful = packed(parts | {"xl/_rels/workbook.xml.rels": f"<Relationships>{link}</Relationships>".encode()})
    good = workbook([[inline("decision"), inline("yield")], [number(1), number(5)]])
    answers: list[httpx.Response] = []
    with served(Settings(store=str(tmp_path / "t.db"))) as running, ExitStack() as stack:
        Trial.create(SMALL, running.service.store).ask("north")
        tokens = [auth.create_token(running.service.store, label=role, role=role)[1] for role in ("blinded", "manage")]
        clients = [stack.enter_context(httpx.Client(base_url=running.address, timeout=PATIENCE)) for _ in range(4)]
        visitors = [Visitor(client) for client in clients]
        for visitor, token in zip(visitors, (tokens[0],) * 3 + (tokens[1],), strict=True):
            visitor.sign_in(token)

        def send(visitor: Visitor, data: bytes) -> None:
            answers.append(visitor.send("/trials/small/tell", {"how": "sheet"}, file=("s.xlsx", data)))

        send(visitors[3], good[:200])  # the process starts
        threads = [threading.Thread(target=send, args=(visitor, harmful)) for visitor in visitors[:3]]
        for thread in threads:
            thread.start()
        wait_until(lambda: running.service._reading or len(answers) > 1)
        send(visitors[3], good)
        assert httpx.codes.SEE_OTHER in [answer.status_code for answer in answers]
        for thread in threads:
            thread.join(PATIENCE)
        running.service._reading.add("manage")
        refused = visitors[3].send("/trials/small/tell", {"how": "sheet"}, file=("s.xlsx", good))
    assert {answer.status_code for answer in answers} <= {303, 422, 429}
    assert max(answer.elapsed.total_seconds() for answer in answers) < PATIENCE / 6
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")


def test_it_can_be_closed_while_it_reads(reader: Reader) -> None:
    said: list[BaseException] = []

    def read_long() -> None:
        try:
            reader.run(time.sleep, 60)
        except InputError as error:
            said.append(error)

    reader.run(len, "abc")
    thread = threading.Thread(target=read_long)
    thread.start()
    time.sleep(0.2)
    reader.close()
    thread.join(5)
    assert not thread.is_alive()
    assert len(said) == 1


def test_it_ends_with_its_service(tmp_path: Path) -> None:
    told = "import os, time; from drimed.service.runtime import Reader; r = Reader(30.0)"
    told += "; print(r.run(os.getpid), flush=True); time.sleep(600)"
    file = tmp_path / "parent.py"
    file.write_text("if __name__ == '__main__':\n    " + told)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.parametrize(
    "error",
    [
        InputError("wrong", ("reports", 1)),
        UnknownNameError("user", "nroth", ["north"]),
        BatchError([Fault((), "wrong", row=2)]),
        UnconfirmedError([Fault((), "unlikely", row=2, severity="unlikely")]),
    ],
)
def test_errors_come_out_of_it_as_they_were(error: DrimedError) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.faults, vars(again)) == (type(error), str(error), error.faults, vars(error))


def test_a_service_that_cannot_close_ends_all_the_same(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "t.db"), str(port)]
    with subprocess.Popen(command) as started:
        try:
            wait_until(lambda: _answers(port))
            started.send_signal(signal.SIGTERM)
            assert started.wait(PATIENCE) == 1
        finally:
            started.kill()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
