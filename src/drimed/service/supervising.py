"""Several worker processes: one that dies, at whatever moment, is replaced at once.

uvicorn asks each worker in turn whether it is alive and waits for the answer. It does not notice that a worker has died
while it waits, nor look at the others meanwhile: one that was killed while it started kept the rest waiting for as long
as a slow worker may take. Here nobody is waited for.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import time

from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

log = logging.getLogger(__name__)


class Workers(Multiprocess):
    """uvicorn's supervisor, with looks instead of waits."""

    _heard: dict[Process, float]  # when a worker was started, or answered last
    _asked: set[Process]  # whether it is there, and has not answered yet

    def init_processes(self) -> None:
        """Start them all."""
        self._heard, self._asked = {}, set()
        super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Replace those that have ended, or have not answered for too long."""
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if self._answers(process):
                continue
            process.kill()
            process.join()
            if process.exitcode == STARTUP_FAILURE:  # the next one would fail the same way
                log.error("worker [%s] cannot start; stopping", process.pid)
                self.should_exit.set()
                return
            log.warning("worker [%s] has died; starting another", process.pid)
            self._heard.pop(process, None)
            self._asked.discard(process)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()

    def _answers(self, process: Process) -> bool:
        """Whether a worker is alive, without waiting for it."""
        if not process.process.is_alive():
            return False
        now = time.monotonic()
        heard = self._heard.setdefault(process, now)
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            while process.parent_conn.poll(0):
                process.parent_conn.recv()
                self._asked.discard(process)
                heard = self._heard[process] = now
            if process not in self._asked:
                process.parent_conn.send(b"ping")
                self._asked.add(process)
        return now - heard < self.config.timeout_worker_healthcheck
