from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.numerics import compiled as kernels
from drimed.numerics.compiled import Kernel, kernel


def test_a_kernel_treats_each_member_alone() -> None:
    scope: dict[str, Any] = {}
    # Code without a file cannot be cached on disk: it is compiled in memory instead.
    exec("def body(x, total):\n    total[0] = 0.0\n    for v in x:\n        total[0] += v\n", scope)
    total = kernel("void(f8[:], f8[:])", "(k)->()")(scope["body"])
    assert float(total(np.array([1.0, 2.0, 3.0]))) == 6.0
    assert total(np.ones((2, 3, 4))).tolist() == [[4.0] * 3] * 2


CHANGED = """
import importlib, pathlib, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
print(importlib.import_module("uses").twice(np.array([1.0, 2.0])).tolist())
"""

USES = """
from drimed.numerics.compiled import kernel
from steps import step


@kernel("void(f8[:], f8[:])", "(k)->(k)")
def twice(x, y):
    for i in range(x.shape[0]):
        y[i] = step(x[i])
"""

STEPS = """
from drimed.numerics.compiled import helper


@helper
def step(x):
    return inner(x) + 0.0


@helper
def inner(x):
    return {factor} * x
"""


def test_processes_that_compile_at_the_same_time_do_not_spoil_each_others_cache(tmp_path: Path) -> None:
    """Three fresh processes at once, then one that loads what they left: the same numbers from all."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "steps.py").write_text(STEPS.format(factor="2.0"))
    command = [sys.executable, "-c", CHANGED, str(tmp_path)]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=300)[0].strip() for process in started]
    later = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [*outputs, later.stdout.strip()] == ["[2.0, 4.0]"] * 4


def test_a_cached_kernel_is_compiled_again_when_a_helper_in_another_file_has_changed(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "uses.py").write_text(USES)
    said = []
    for factor in ("2.0", "3.0"):
        (tmp_path / "steps.py").write_text(STEPS.format(factor=factor))
        done = subprocess.run(
            [sys.executable, "-B", "-c", CHANGED, str(tmp_path)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    assert said == ["[2.0, 4.0]", "[3.0, 6.0]"]


BODY = """
def body(x, total):
    total[0] = 0.0
    for v in x:
        total[0] += v
"""


def total_of(body: Any) -> Kernel:
    return kernel("void(f8[:], f8[:])", "(k)->()")(body)


def test_compiling_is_told_once_and_loading_what_was_compiled_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, kernels.__name__)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "summing_up.py").write_text(BODY, encoding="utf-8")
    body = import_module("summing_up").body

    def told() -> list[str]:
        caplog.clear()
        monkeypatch.setattr(kernels, "_SAID", threading.Event())  # as a new process
        made = total_of(body)
        assert float(made(np.array([1.0, 2.0]))) == 3.0
        assert float(made(np.array([3.0, 4.0]))) == 7.0
        return [record.message for record in caplog.records]

    assert told() == [kernels.COLD]
    assert told() == []


def test_a_process_that_waits_for_another_one_that_compiles_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fcntl = pytest.importorskip("fcntl")
    caplog.set_level(logging.INFO, kernels.__name__)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "adding_up.py").write_text(BODY, encoding="utf-8")
    made = total_of(import_module("adding_up").body)
    assert float(made(np.ones(2))) == 2.0  # now it is in the cache, and nothing else tells of it
    said = threading.Event()
    monkeypatch.setattr(kernels, "_SAID", said)
    caplog.clear()
    waiting = threading.Thread(target=total_of(import_module("adding_up").body).prepare)
    with (tmp_path / "adding_up.py").open("rb") as other:  # an open file of its own: like another process
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting.start()
        assert said.wait(60)
    waiting.join()
    assert [record.message for record in caplog.records] == [kernels.COLD]


def test_without_a_place_for_its_cache_it_is_told_that_every_process_compiles(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, kernels.__name__)
    monkeypatch.setattr(kernels, "_SAID", threading.Event())
    for _ in range(2):
        scope: dict[str, Any] = {}
        exec(BODY, scope)
        total_of(scope["body"])(np.ones(2))
    assert [record.message for record in caplog.records] == [kernels.UNCACHED]
