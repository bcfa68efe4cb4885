"""Stands in for ``python``: has a fork run what the arguments name, or Python itself where only that will do.

:mod:`toolbox.warm_python` copies it, with a first line for the system and a file of values beside it. It is a script: nothing
imports it, and it imports little, because it is started often.
"""

import marshal
import os
import signal
import socket
import sys

LATER = "TORCHINDUCTOR_CACHE_DIR"
"""Torch reads it when it needs it, and sets it itself: from then on it is in the environment of all tests of this worker."""
UNBUFFERED = "PYTHONUNBUFFERED"
"""The same as the option ``-u``, which a fork can obey. The action sets it for each command that it runs."""


def main():
    with open(f"{__file__.rpartition('/')[0]}/values", "rb") as values:  # noqa: PTH123 - see above
        python, path, kept, read_at_start = marshal.load(values)
    environment = dict(os.environ)
    names = {name for name in {*environment, *kept} if name.startswith(read_at_start)} - {LATER, UNBUFFERED}
    differs = any(environment.get(name) != kept.get(name) for name in names)
    words = sys.argv[1:]
    options = ["-u"] if environment.get(UNBUFFERED) else []
    while words and words[0] in ("-B", "-P", "-u"):
        options.append(words.pop(0))
    if differs or not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        os.execv(python, [python, *sys.argv[1:]])
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = marshal.dumps((options, words, os.getcwd(), environment))  # noqa: PTH109
        socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
        server.sendall(request)
        pid = int.from_bytes(received(server, 4), "little")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int.from_bytes(received(server, 4), "little", signed=True)
    if code < 0:  # end as the process did
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def received(server, count):
    data = b""
    while len(data) < count:
        more = server.recv(count - len(data))
        if not more:
            os._exit(1)
        data += more
    return data


main()
