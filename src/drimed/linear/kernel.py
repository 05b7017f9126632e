"""Compiled loops over tiny matrices, as gufuncs: the same code serves one decision and a batch of any shape.

A kernel is written for one member, with plain loops, and compiled by Numba on its first call (never on import; the
result is cached on disk). Each member of a batch is computed alone, in the same order of operations: its result does
not depend on its neighbours or on the size of the batch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Part:
    """A function that kernels, and other parts, may call; compiled together with them."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body = body
        self.__doc__ = body.__doc__

    def __call__(self, *arrays: Any) -> Any:
        return self.body(*arrays)


def part(body: Callable[..., Any]) -> Part:
    """Decorate a function that kernels of the same module call."""
    return Part(body)


class Kernel:
    """A gufunc that is compiled when it is first called."""

    def __init__(self, body: Callable[..., None], types: str, layout: str) -> None:
        self._body, self._types, self._layout = body, types, layout
        self._compiled: Callable[..., Any] | None = None
        self.__doc__ = body.__doc__

    def __call__(self, *arrays: Any) -> Any:
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled(*arrays)

    def _compile(self) -> Callable[..., Any]:
        import numba  # here, because it takes half a second that most commands do not need

        def build(cache: bool) -> Callable[..., Any]:
            guvectorize: Any = numba.guvectorize
            body = _with_parts(self._body, {})
            compiled = guvectorize([self._types], self._layout, nopython=True, cache=cache)(body)
            return compiled.ufunc  # the NumPy ufunc without Numba's wrapper

        with _one_at_a_time():
            try:
                return build(cache=True)
            except RuntimeError:  # no writable place for the cache: compile in every process instead
                return build(cache=False)


def kernel(types: str, layout: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorate a function of core arrays, its outputs last: `types` and `layout` are Numba's."""
    return lambda body: Kernel(body, types, layout)


def _with_parts(body: Callable[..., Any], done: dict[str, Any]) -> Callable[..., Any]:
    """The same function with compiled parts in place of those that it calls by name."""
    import numba

    names = [n for n in body.__code__.co_names if isinstance(body.__globals__.get(n), Part)]
    for name in names:
        if name not in done:
            done[name] = numba.njit(_with_parts(body.__globals__[name].body, done))
    if not names:
        return body
    found = types.FunctionType(body.__code__, body.__globals__ | {n: done[n] for n in names}, body.__name__)
    found.__qualname__, found.__module__ = body.__qualname__, body.__module__
    return found


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Held by one process of this user at a time.

    A cached gufunc is two files that call each other by names which differ from process to process. Two processes that
    wrote them at the same time would leave a pair that does not fit, and crash whoever loads it.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system: do not start several processes before the first has compiled
        yield
        return
    path = Path(tempfile.gettempdir()) / f"drimed-kernels-{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
