"""A uvicorn server that stops without dropping a request."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from elmokit.serve.listening import address_of, cannot_listen
from elmokit.serve.service import Service


class DrainingServer(uvicorn.Server):
    """Refuses new work at the first signal, and ends when the last request is answered, or at a second signal.

    Args:
        config: uvicorn's settings.
        service: Answers the requests, and counts those in progress.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the one bound socket in `sockets`, and print its address."""
        assert sockets is not None, "run is given a bound socket"
        host, port = sockets[0].getsockname()[:2]
        try:
            await super().startup(sockets)
            sockets[0].getsockname()  # uvloop does not raise if it cannot listen, but closes the socket
        except OSError as error:  # another process has started to listen since the address was bound
            raise cannot_listen(host, port, error) from error
        print(f"elmokit: {self._service.name} at {address_of(host, port)}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; stop at the second."""
        self.should_exit = self.force_exit = self._service.is_draining
        self._service.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; asked ten times a second."""
        return await super().on_tick(counter) or (self._service.is_draining and not self._service.in_progress)
