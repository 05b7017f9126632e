"""Sweeps beyond one machine: an existing Dask or Ray cluster, through joblib.

The workers need the same version of drimed installed; results come back to the caller and are stored there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from drimed.errors import ConfigError, InputError, MissingExtraError

PATIENCE = 20  # seconds for a scheduler to answer


@dataclass(frozen=True)
class Cluster:
    """Where to run.

    >>> Cluster.parse("dask=tcp://127.0.0.1:8786")
    Cluster(kind='dask', address='tcp://127.0.0.1:8786')
    """

    kind: str  # dask | ray
    address: str

    @staticmethod
    def parse(text: str) -> Cluster:
        """From "dask=tcp://host:port" or "ray=address"; "ray=local" starts a Ray on this machine."""
        kind, separator, address = text.partition("=")
        if kind not in ("dask", "ray") or not separator or not address:
            raise ConfigError(f"cluster must be dask=tcp://host:port or ray=address, got {text!r}")
        return Cluster(kind, address)

    @property
    def streams(self) -> bool:
        """Whether results come back one by one."""
        return self.kind == "dask"

    def backend(self) -> AbstractContextManager[None]:
        """Connected, for the duration of a with block."""
        return _dask(self.address) if self.kind == "dask" else _ray(self.address)


@contextmanager
def _dask(address: str) -> Iterator[None]:
    try:
        from distributed import Client
        from joblib import parallel_config
    except ImportError as error:
        raise MissingExtraError("distributed", "cluster") from error
    try:
        connect: Any = Client
        client = connect(address, timeout=f"{PATIENCE} s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error
    with client, parallel_config(backend="dask", wait_for_workers_timeout=60):
        yield


@contextmanager
def _ray(address: str) -> Iterator[None]:
    try:
        import ray
        from joblib import parallel_config
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    local = address == "local"
    try:
        ray.init(address=None if local else address, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at {address}: {error}") from error
    register: Any = register_ray
    register()
    try:
        with parallel_config(backend="ray", n_jobs=-1):
            yield
    finally:
        ray.shutdown()
