"""llama.cpp's RPC backend: servers on other machines as devices that get layers.

It ends the process where a server is not there or is lost: only for a process that may end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from localspec.errors import BackendError, RpcError
from localspec.llama import backend
from localspec.llama.devices import function
from localspec.system import packages

_NAME = b"RPC"
_COMPILED = 'CMAKE_ARGS="-DGGML_RPC=on"'


def check_rpc() -> None:
    """Raise `BackendError` where this build has no RPC backend."""
    if not backend.library().llama_supports_rpc():
        raise BackendError(
            f"This {backend.PACKAGE} was compiled without RPC, and computes on this machine alone.",
            packages.mend(
                f"Reinstall it with {_COMPILED} (docs/rpc.md tells how).",
                f"{backend.PACKAGE} with {_COMPILED}",
            ),
        )


def server_devices(addresses: Sequence[str]) -> Any:
    """The devices of all these servers, in their order: an array of pointers up to null.

    llama.cpp shares the layers out among them by their free memory. They are known only to who is given them: a model
    without servers does not use them. Raises `BackendError` and `RpcError`.
    """
    check_rpc()
    pointer = ctypes.c_void_p
    backend_of = function("ggml_backend_reg_by_name", pointer, [ctypes.c_char_p])(_NAME)
    address_of = function("ggml_backend_reg_get_proc_address", pointer, [pointer, ctypes.c_char_p])
    count = function("ggml_backend_reg_dev_count", ctypes.c_size_t, [pointer])
    get = function("ggml_backend_reg_dev_get", pointer, [pointer, ctypes.c_size_t])
    add = ctypes.CFUNCTYPE(pointer, ctypes.c_char_p)(address_of(backend_of, b"ggml_backend_rpc_add_server"))
    found: list[int] = []
    for address in addresses:
        server = add(address.encode())
        if not server:
            raise RpcError(
                f"The RPC server {address} has no device.", "Start it with one.", addresses=[address]
            )
        found += [get(server, index) for index in range(count(server))]
    most = backend.library().llama_max_devices()
    if len(found) > most:
        raise RpcError(
            f"The RPC servers have {len(found)} devices together, and llama.cpp takes {most}.",
            "Give fewer servers, or start them with fewer devices.",
            addresses=list(addresses),
        )
    return (pointer * (len(found) + 1))(*found, None)
