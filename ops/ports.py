"""Ports on loopback: a clear word before anything is started, instead of a process that ends at once."""

import socket

from celeriac.common.contract.errors import CeleriacError

ADDRESS = "127.0.0.1"


class PortTaken(CeleriacError):
    """Another process listens on the port, or we may not."""

    def __init__(self, port: int, why: str | None, remedy: str) -> None:
        """`why` in the system's words; `remedy`: what to do."""
        super().__init__(f"port {port} of {ADDRESS} cannot be used ({why}); {remedy}")


def must_be_free(port: int, remedy: str) -> None:
    """Raises PortTaken if nobody could listen on it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that just ended do not count
        try:
            probe.bind((ADDRESS, port))
            probe.listen()
        except OSError as error:
            raise PortTaken(port, error.strerror, remedy) from error
