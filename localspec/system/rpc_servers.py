"""Servers of llama.cpp's RPC backend: their addresses, and what answers there.

llama.cpp waits without end for a server that does not answer, and ends its process where one is not there or is lost.
So each is greeted here first, as llama.cpp does it and with a time limit.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.checks import shown
from localspec.errors import InvalidRequest, RpcError

SECONDS = 2.0
"""How long a server may take to answer."""
PROTOCOL = (7, 0)
"""Of the tested llama.cpp: another major number is refused, and a higher minor one."""
MOST = 16
"""Servers that llama.cpp takes."""
_HELLO, _DEVICE_COUNT, _MEMORY = 14, 15, 11
_CAPABILITIES = bytes(24)
_LARGEST = 1 << 10
_START = "Start llama.cpp's RPC server there, and see that a firewall lets the port through."


@dataclass(frozen=True)
class Server:
    """What answered. version: of its protocol. memory: free and total bytes of each of its devices."""

    address: str
    version: tuple[int, int, int]
    memory: tuple[tuple[int, int], ...]


def checked_addresses(name: str, value: object) -> tuple[str, ...]:
    """Addresses from a text with commas or from several texts, each once. name: of the option, for the error.

    Raises `InvalidRequest` for what is not HOST:PORT.
    """
    if isinstance(value, str):
        given: list[object] = list(value.split(",")) if value.strip() else []
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        given = list(value)
    else:
        raise InvalidRequest(f"{name} is {shown(value)}.", "Give addresses, HOST:PORT.", name=name)
    addresses = tuple(dict.fromkeys(_checked(name, item) for item in given))
    if len(addresses) > MOST:
        raise InvalidRequest(
            f"{name} is a list of {len(addresses)} servers.", f"llama.cpp takes {MOST} at most.", name=name
        )
    return addresses


def _checked(name: str, item: object) -> str:
    address = item.strip() if isinstance(item, str) else ""
    host, colon, port = address.rpartition(":")
    if not host or not colon or not host.isprintable() or any(mark in host for mark in " :/@[]"):
        raise InvalidRequest(
            f"{name} is {shown(item)}, which is not HOST:PORT.",
            "Give the name or the IPv4 address of a machine and a port, such as 192.168.1.20:50052.",
            name=name,
        )
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 1 << 16):
        raise InvalidRequest(
            f"{name} is {shown(item)}, whose port is {shown(port)}.",
            "A port is a number from 1 to 65535.",
            name=name,
        )
    return f"{host}:{int(port)}"


def check_servers(addresses: Sequence[str], seconds: float = SECONDS) -> None:
    """Greet each of them. Raises `RpcError` for the first that cannot be used."""
    for address in addresses:
        greet(address, seconds)


def greet(address: str, seconds: float = SECONDS) -> Server:
    """What answers at a checked address. Raises `RpcError` where nothing does, or no server of the tested protocol."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _unusable(address, f"has no IPv4 address: {reason}", "Check the name of the machine.") from None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        link = _Link(connection, time.monotonic() + seconds)
        try:
            connection.settimeout(seconds)
            connection.connect(found[0][4])
        except TimeoutError:
            raise _unusable(address, f"does not answer within {seconds:g} s", _START) from None
        except OSError as error:
            raise _unusable(address, f"cannot be reached: {error.strerror or error}", _START) from None
        try:
            return _asked(address, link)
        except TimeoutError:
            raise _unusable(
                address,
                f"takes the connection and says nothing for {seconds:g} s",
                "An RPC server serves one program at a time: end the one that uses it, or give another address.",
            ) from None
        except OSError:
            raise _unusable(
                address,
                "ends the connection when it is greeted",
                "Give the address of an RPC server, built from the same llama.cpp as the library here.",
            ) from None


class _Link:
    """A connection on which everything must be said by a point in time."""

    def __init__(self, connection: socket.socket, ends: float) -> None:
        self._connection, self._ends = connection, ends

    def ask(self, command: int, argument: bytes, size: int) -> bytes:
        """The answer of `size` bytes. Raises `OSError`."""
        self._connection.sendall(struct.pack("<BQ", command, len(argument)) + argument)
        (told,) = struct.unpack("<Q", self._read(8))
        if told != size:
            raise OSError(f"an answer of {told} bytes in the place of {size}")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            part = self._connection.recv(size - len(data))
            if not part:
                raise OSError("the connection ended")
            data += part
        return data


def _asked(address: str, link: _Link) -> Server:
    answer = link.ask(_HELLO, _CAPABILITIES, 4 + len(_CAPABILITIES))
    version = answer[0], answer[1], answer[2]
    if version[0] != PROTOCOL[0] or version[1] > PROTOCOL[1]:
        raise _unusable(
            address,
            f"speaks version {'.'.join(map(str, version))} of the RPC protocol, and the library here "
            f"{'.'.join(map(str, PROTOCOL))}",
            "Build the server from the same llama.cpp as the library here.",
        )
    (count,) = struct.unpack("<I", link.ask(_DEVICE_COUNT, b"", 4))
    if not 0 < count <= _LARGEST:
        raise _unusable(address, f"has {count} devices", "Start the server with a device.")
    memory = (struct.unpack("<QQ", link.ask(_MEMORY, struct.pack("<I", index), 16)) for index in range(count))
    return Server(address, version, tuple((free, total) for free, total in memory))


def _unusable(address: str, why: str, remedy: str) -> RpcError:
    return RpcError(f"The RPC server {address} {why}.", remedy, addresses=[address])
