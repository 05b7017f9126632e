"""Compiled loops over tiny matrices, as gufuncs: the same code serves one decision and a batch of any shape.

A kernel is written for one member, with plain loops, and compiled by Numba on its first call (never on import; the
result is cached on disk). Each member is computed alone, in the same order: its result depends on no neighbour. Kernels
share steps through helpers: plain functions that are compiled into every kernel that calls them. What is slow to
compile is what Numba has to write first: an expression on whole arrays takes more than a second, np.linalg, `sum`,
`max` or `copy` of an array 0.1 to 0.4 s, a loop a few milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

COLD = "The first use prepares the numerical code; this takes about half a minute, once."
UNCACHED = (
    "The first use prepares the numerical code; this takes about half a minute in every process, because there is no "
    "place to keep it: set NUMBA_CACHE_DIR to a folder that can be written to."
)
SHORT = 250  # bytes of code: such a helper is inlined wherever it is called; of longer ones the compiler decides
# Of Numba's levels of optimisation, helpers and bodies gain nothing from 3. The loop over members holds a copy of the
# optimised body, and only around a short one is it worth optimising anew.
BODY_LEVEL, LOOP_LEVEL = "2", "0"
BRIEF = 20  # tenths of a second that a process waits for another without saying so
Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger(__name__)

_SAID, _THREADS = threading.Event(), threading.Lock()
_HELPERS: dict[FunctionType, Any] = {}  # function -> its compiled form, and the files that it was made from


class Kernel:
    """A gufunc that is compiled when it is first called."""

    def __init__(self, body: Callable[..., None], types: str, layout: str, in_place: tuple[str, ...]) -> None:
        self._body, self._types, self._layout, self._in_place = body, types, layout, in_place
        self._compiled: Callable[..., Any] | None = None
        self.__doc__ = body.__doc__

    def __call__(self, *arrays: Any) -> Any:
        return (self._compiled or self.prepare())(*arrays)

    def prepare(self) -> Callable[..., Any]:
        """Compile it, or load it from the cache."""
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled

    def _compile(self) -> Callable[..., Any]:
        def build(cache: bool) -> Callable[..., Any]:
            # Here, because it takes half a second that most commands do not need; by one thread, because Numba's
            # modules import each other.
            from numba.np import ufunc

            vectorize: Any = ufunc.GUVectorize
            made = vectorize(body, self._layout, nopython=True, cache=cache, writable_args=self._in_place)
            with _optimised(BODY_LEVEL):
                made.add(self._types)
            with _optimised(BODY_LEVEL if len(body.__code__.co_code) < SHORT else LOOP_LEVEL):
                return cast(Callable[..., Any], made.build_ufunc().ufunc)  # NumPy's, without Numba's around it

        with _one_at_a_time(self._body.__code__.co_filename):
            if self._compiled is not None:  # by another thread, while this one waited
                return self._compiled
            files = {__file__}
            body = _with_helpers(self._body, files)
            if len(files) > 1:
                # Numba's cache on disk notices a change of the kernel's own file, but not of those of its helpers.
                stamp = zlib.crc32(b"".join(Path(file).read_bytes() for file in sorted(files)))
                body.__qualname__ = f"{body.__name__}_{stamp:08x}"
            try:
                with _telling(COLD):
                    return build(cache=True)
            except RuntimeError:  # no writable place for the cache: compile in every process instead
                with _telling(UNCACHED):
                    return build(cache=False)


def kernel(types: str, layout: str, in_place: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Kernel]:
    """Decorate a function of core arrays, its outputs last: `types` and `layout` are Numba's.

    Inputs named in `in_place` are written to: give the kernel a copy of its own.
    """
    return lambda body: Kernel(body, types, layout, in_place)


def helper(body: Function) -> Function:
    """Decorate a function that kernels call. It stays plain Python until a kernel that calls it is compiled."""
    _HELPERS[cast(FunctionType, body)] = None
    return body


@contextlib.contextmanager
def _optimised(level: str) -> Iterator[None]:
    """Numba's level of optimisation, in this block alone."""
    from numba.core import config

    settings: Any = config
    before = settings.OPT
    settings.OPT = type(before)(level)
    try:
        yield
    finally:
        settings.OPT = before


def _tell(message: str) -> None:
    """Log this, once in a process."""
    if not _SAID.is_set():
        _SAID.set()
        log.info(message)


@contextlib.contextmanager
def _telling(message: str) -> Iterator[None]:
    """Log this as soon as Numba compiles something, once in a process; what it loads from its cache passes no pass."""
    if _SAID.is_set():
        yield
        return
    from numba.core import event

    class Compiles(event.Listener):
        def on_start(self, _: Any) -> None:
            _tell(message)

        def on_end(self, _: Any) -> None:
            pass

    with event.install_listener("numba:run_pass", Compiles()):
        yield


def _with_helpers(body: Any, files: set[str]) -> Any:
    """The function in a scope where the helpers that it calls are compiled ones; `files` gets the files they are in.

    A compiled helper is shared by all its callers: to Numba, an overload would be another one for each of them.
    """
    import numba

    njit: Any = numba.njit
    scope, name = dict(body.__globals__), body.__name__
    for called in body.__code__.co_names:
        plain = scope.get(called)
        if isinstance(plain, FunctionType) and plain in _HELPERS:
            own = {plain.__code__.co_filename}
            if _HELPERS[plain] is None:
                short = len(plain.__code__.co_code) < SHORT
                decorate = njit(error_model="numpy", forceinline=short, no_cpython_wrapper=True, no_cfunc_wrapper=True)
                compiled = decorate(_with_helpers(plain, own))
                compiled.get_call_template = partial(_of_any_number, compiled.get_call_template)
                _HELPERS[plain] = compiled, own
            scope[called], more = _HELPERS[plain]
            files |= more
    return FunctionType(body.__code__, scope, name)


def _of_any_number(template: Callable[..., Any], args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """A helper's call: a constant argument is a number like any other, or the helper would be compiled anew for it."""
    from numba.core import types

    return template(tuple(map(types.unliteral, args)), kws)


@contextlib.contextmanager
def _one_at_a_time(source: str) -> Iterator[None]:
    """Held by one thread of a process, and for the kernels of this source file by one process at a time.

    A cached gufunc is two files that call each other by names which differ from process to process: two processes that
    wrote them at once would leave a pair that crashes who loads it. The lock is on the source file, which is only read.
    """
    with _THREADS, contextlib.ExitStack() as held:
        try:
            import fcntl

            file = held.enter_context(Path(source).open("rb"))
            for _ in range(BRIEF):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.1)
            else:  # another process does not just load them: it compiles
                _tell(COLD)
                fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):
            pass  # no such locks here: do not start several processes before the first has compiled
        yield
