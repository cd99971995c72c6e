"""The program of the connection test, on one node: listen, or connect to other nodes, or both. Python 3.8 or later.

    python - '{"token": "ab12", "seconds": 15, "listen": 29555, "expected": 2, "targets": {"node002": ["10.0.0.2", 1]}}'

`listen` is 0 on a node that only connects. The output is JSON, one object a line: `listening` once the port is open,
then `reached`, the names of the targets that answered with the token.
"""

import sys

sys.path[:] = [path for path in sys.path if path]  # no imports from the working directory; `-P` needs Python 3.11

import json
import socket
import threading
import time

RETRY_S = 0.5


def print_fields(**fields):
    print(json.dumps(fields), flush=True)


def open_port(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(16)
    return listener


def answer(listener, token, expected, deadline):
    """Send the token to every caller, until `expected` callers had it or the time is over."""
    while expected > 0 and time.monotonic() < deadline:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(token)
            expected -= 1
        except OSError:
            continue


def reaches(address, port, token, deadline):
    """Return whether a listener with this token answers before the deadline."""
    pause = threading.Event()
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(
                (address, port), timeout=max(0.01, deadline - time.monotonic())
            ) as connection:
                if connection.recv(len(token), socket.MSG_WAITALL) == token:
                    return True
        except OSError:
            pass
        pause.wait(RETRY_S)
    return False


def main():
    options = json.loads(sys.argv[1])
    token, deadline = options["token"].encode(), time.monotonic() + options["seconds"]
    threads = []
    if options["listen"]:
        listener = open_port(options["listen"])
        print_fields(listening=True)
        threads.append(threading.Thread(target=answer, args=(listener, token, options["expected"], deadline)))
    reached = []

    def visit(name, address, port):
        if reaches(address, port, token, deadline):
            reached.append(name)

    for name, (address, port) in options["targets"].items():
        threads.append(threading.Thread(target=visit, args=(name, address, port)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print_fields(reached=sorted(reached))


main()
