"""Files that are made to harm: they are read in a process that can be killed, and the service always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from drimed.errors import BatchError, DrimedError, InputError, UnconfirmedError, UnknownNameError
from drimed.records import Fault
from drimed.service.runtime import Reader
from drimed.trial.tables import read
from tests.service.serving import PATIENCE, free_port, wait_until
from tests.trial.drawn_workbooks import inline, number, workbook

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
