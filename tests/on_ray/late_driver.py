"""A driver process that is late: it reads its commands only when the supervisor has closed its end.

Before it reads them it reports once more, as the real one may do at any time. It writes the commands to a file.
"""

from __future__ import annotations

import json
import select
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

NODES = [["n1", "head", "127.0.0.1", {"CPU": 1.0}, {"CPU": 1.0}]]
_encode = msgspec.msgpack.Encoder().encode


def main(fd: int) -> None:
    """Serve until the last command."""
    connection = Connection(fd)
    file = Path(msgspec.msgpack.decode(connection.recv_bytes())["address"])
    connection.send_bytes(_encode([["ready", "0"], ["view", NODES]]))
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    connection.send_bytes(_encode([["view", NODES]]))
    commands = []
    try:
        while True:
            commands += msgspec.msgpack.decode(connection.recv_bytes())
    except EOFError:
        file.write_text(json.dumps(commands))


if __name__ == "__main__":
    main(int(sys.argv[1]))
