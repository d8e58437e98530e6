"""Binding the port and running the application until a signal: the only place with sockets and uvicorn."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import uvicorn

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.server.api import EngineApi, ServerSettings
from mtrun.runtime.server.app import create_app
from mtrun.runtime.server.security import check_exposure
from mtrun.runtime.worker import Worker

GRACE_SECONDS = 15.0  # what running requests get to finish after the first signal
_LAST_WORDS = 5  # seconds beyond the grace for the error events of what was cut off


def bind(settings: ServerSettings) -> socket.socket:
    """A listening socket on the configured host and port.

    Raises:
        ConfigurationError: the port is taken, the host is not of this machine, or the bind needs a key.
    """
    check_exposure(settings)
    host, port = settings.host.strip("[]"), settings.port
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address[0], port, *address[2:]))  # getaddrinfo wraps a port past 65535
        listener.listen(128)
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        raise ConfigurationError(_bind_message(host, port, error)) from None
    listener.set_inheritable(False)
    return listener


def serve(
    engine: EngineApi,
    listener: socket.socket | None = None,
    on_bound: Callable[[str, int], None] | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish or cancel what runs and stop the engine's worker.

    `on_bound` is called with host and port once clients can connect. Raises ConfigurationError as `bind` does.
    """
    listener = listener if listener is not None else bind(engine.server)
    host, port = listener.getsockname()[:2]
    if on_bound is not None:
        on_bound(host, port)
    server = make_server(engine, grace_seconds)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn raises the signal again after it has shut down; the caller asked for exactly this
    finally:
        listener.close()
        engine.worker.stop(0.0)


def make_server(engine: EngineApi, grace_seconds: float = GRACE_SECONDS) -> DrainingServer:
    """uvicorn over the application, with one HTTP implementation so that departures are noticed everywhere alike."""
    config = uvicorn.Config(
        create_app(engine),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(grace_seconds) + _LAST_WORDS,
    )
    return DrainingServer(config, engine.worker, grace_seconds)


class DrainingServer(uvicorn.Server):
    """Stops the worker while the connections are still open, so that every client hears how its request ended."""

    def __init__(self, config: uvicorn.Config, worker: Worker, grace_seconds: float) -> None:
        super().__init__(config)
        self._worker = worker
        self._grace_seconds = grace_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = asyncio.create_task(asyncio.to_thread(self._worker.stop, self._grace_seconds))
        await super().shutdown(sockets)
        self._worker.cancel_all()
        await stopping


def _bind_message(host: str, port: int, error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken: stop what uses it, or set server.port=N (0 = any free port)."
    if number in (errno.EACCES, errno.EPERM):
        return f"Port {port} on {host} is not allowed for this user: choose server.port=N above 1023."
    return f"Cannot listen on server.host={host} server.port={port} ({error}): choose an address of this machine."
