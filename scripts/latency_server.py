"""How soon `localspec serve` answers /health while it decodes, and how soon it is idle when its client has left.

    python scripts/latency_server.py TARGET.gguf [DRAFT.gguf]

Run it on an idle machine. Prints one line of JSON: the longest and the median time of a /health, in seconds, and the
seconds from hanging up, in a long prefill and in decoding, to the last moment at which the server used the processor.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
import urllib.request
from urllib.parse import urlsplit

import httpx
from pair_arguments import pair_parser
from server_process import ServerProcess

SLICE = 0.05
BUSY_SHARE = 0.2
"""A slice of time in which the server takes a smaller share of one core is idle."""
WATCHED_SECONDS = 4.0
LEAVE_AFTER = 2.0
HEALTH_SECONDS = 10.0


def busy_after(server: ServerProcess, seconds: float) -> float:
    """How many seconds from now the server was last busy, watched for `seconds`."""
    started = time.perf_counter()
    last, before, at = 0.0, server.cpu_seconds, started
    while at - started < seconds:
        time.sleep(SLICE)
        used, then = server.cpu_seconds, time.perf_counter()
        if used - before > BUSY_SHARE * (then - at):
            last = then - started
        before, at = used, then
    return last


def leave(server: ServerProcess, prompt: str) -> dict[str, float]:
    """Ask, hang up after a while, and see how long it goes on. cores_before: cores that were busy until then."""
    body = {"prompt": prompt, "max_tokens": 2000, "temperature": 0, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    address = urlsplit(server.url)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    before = server.cpu_seconds
    # Not a client library: closing one from another thread leaves its socket open until the next byte comes.
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        connection.sendall(head.encode() + content)
        time.sleep(LEAVE_AFTER)
    cores = (server.cpu_seconds - before) / LEAVE_AFTER
    return {"cores_before": cores, "busy_after": busy_after(server, WATCHED_SECONDS)}


def health(server: ServerProcess) -> dict[str, float]:
    """Seconds that /health takes, asked again and again while an answer is decoded."""
    body = {
        "prompt": "Once upon a time",
        "max_tokens": 2000,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    took = []
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=600) as answer:
        next(answer.iter_raw())
        until = time.monotonic() + HEALTH_SECONDS
        while time.monotonic() < until:
            asked = time.perf_counter()
            urllib.request.urlopen(server.url + "/health").read()
            took.append(time.perf_counter() - asked)
            time.sleep(SLICE)
    return {"longest": max(took), "median": statistics.median(took), "times": len(took)}


def main() -> int:
    """Measure and print."""
    parser = pair_parser(__doc__)
    given = parser.parse_args()
    draft = [] if given.draft is None else ["-md", str(given.draft)]
    options = ["-m", str(given.target), *draft, "-c", str(given.ctx_size), "--draft-tokens", "3"]
    with ServerProcess(*options) as server:
        result = {
            "health": health(server),
            "decode": leave(server, "Once upon a time"),
            "prefill": leave(server, "Once upon a time there was a king. " * 300),
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
