"""The service from Python: `Client`, and `AsyncClient` for asyncio."""

from drimed.errors import MissingExtraError

try:
    from drimed.client.asynchronous import AsyncClient
    from drimed.client.synchronous import Client
except ModuleNotFoundError as error:
    raise MissingExtraError(str(error.name), "client") from error
from drimed.client.failures import AccessError, ServiceError

__all__ = ["AccessError", "AsyncClient", "Client", "ServiceError"]
