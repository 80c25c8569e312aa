"""Whether RPC servers can be used: the build of llama.cpp here, and what answers at each address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.doctor.finding import Finding, ok, problem
from localspec.engine.libraries import reference
from localspec.errors import RpcError
from localspec.system.packages import mend
from localspec.system.progress import readable
from localspec.system.rpc_servers import greet

_SECONDS = 60.0


def check_rpc(addresses: Sequence[str]) -> Iterator[Finding]:
    """Nothing where no server is named."""
    if not addresses:
        return
    library = reference()
    probe = library.probe(_SECONDS)
    if "RPC" in probe.backends:
        yield ok("RPC", f"{library.package} can use servers", compiled=True)
    elif probe.usable:
        yield problem(
            "RPC",
            f"{library.package} was compiled without RPC, and cannot use servers.",
            mend('See "Build" in docs/rpc.md.', f'{library.package} with CMAKE_ARGS="-DGGML_RPC=on"'),
            compiled=False,
        )
    for address in addresses:
        yield _server(address)


def _server(address: str) -> Finding:
    topic = f"RPC server {address}"
    try:
        server = greet(address)
    except RpcError as error:
        return problem(topic, error.message, error.command, usable=False)
    version = ".".join(map(str, server.version))
    devices = ", ".join(f"{readable(free)} of {readable(total)} free" for free, total in server.memory)
    count = len(server.memory)
    named = f"{count} device{'s' if count > 1 else ''}"
    return ok(
        topic,
        f"it answers; protocol {version}, {named}: {devices}",
        usable=True,
        protocol=version,
        devices=[{"free_bytes": free, "memory_bytes": total} for free, total in server.memory],
    )
