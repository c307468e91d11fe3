"""A server on this machine that speaks S3, behind an added delay: ``python -m benchmarks._object_store``.

moto's server, and before it, in a process of its own so that neither waits for the other's GIL, a proxy that passes on
what a client sends only after a while, and counts its GETs.
Prints its two URLs (with and without the delay) as JSON; each line on standard input is answered with the count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from typing import NoReturn


async def _serve(port: int, delay_s: float, count: list[int]) -> asyncio.Server:
    kept = set()  # a loop holds its tasks weakly, and the server those of its connections not at all

    async def slowed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        mine, passing = asyncio.current_task(), asyncio.ensure_future(_pass_on(there, writer))
        kept.add(mine)
        with contextlib.suppress(ConnectionError):  # a client that is gone
            while data := await reader.read(1 << 16):  # a request without a body comes in one piece
                count[0] += data.startswith(b"GET")
                await asyncio.sleep(delay_s)
                back.write(data)
                await back.drain()
        back.close()
        await passing
        kept.discard(mine)

    return await asyncio.start_server(slowed, "127.0.0.1", 0)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    parser.add_argument("--bare", action="store_true", help="The server alone; prints its port.")
    given = parser.parse_args()
    if given.bare:
        _serve_bare()
    command = [sys.executable, "-m", "benchmarks._object_store", "--bare"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        _serve_slowed(int(server.stdout.readline()), given.delay_ms / 1e3)


def _serve_bare() -> NoReturn:
    os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    os._exit(0)  # the server's threads hold nothing that matters


def _serve_slowed(port: int, delay_s: float) -> None:
    count = [0]
    loop = asyncio.new_event_loop()
    proxy = loop.run_until_complete(_serve(port, delay_s, count))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    slow = proxy.sockets[0].getsockname()[1]
    print(json.dumps({"slow": f"http://127.0.0.1:{slow}", "fast": f"http://127.0.0.1:{port}"}), flush=True)
    for _ in sys.stdin:
        print(count[0], flush=True)


if __name__ == "__main__":
    main()
