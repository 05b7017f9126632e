"""The service from Python: `Client`, and `AsyncClient` for asyncio."""

from drimed.errors import AccessError, MissingExtraError, ServiceError

try:
    from drimed.client.clients import AsyncClient, Client
except ModuleNotFoundError as error:
    raise MissingExtraError(str(error.name), "client") from error

__all__ = ["AccessError", "AsyncClient", "Client", "ServiceError"]
