"""The socket that the server listens on."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, but does not listen yet; OSError says why it cannot be bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as on_error:
            bound = on_error.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            on_error.pop_all()
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    return bound


def cannot_listen(host: str, port: int, error: OSError) -> OSError:
    """An error that says which address cannot be listened on, and why."""
    is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL  # no address of this machine
    option = "--host" if is_host else "--port"
    return OSError(f"cannot listen on {host}, port {port} ({error.strerror or error}): choose another with {option}")


def address_of(host: str, port: int) -> str:
    """The address of the page, as a browser takes it."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
