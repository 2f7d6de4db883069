"""The life of a worker process: chunks come in by standard input, answers go out by standard output.

A worker is a new Python, not a fork: threads of JAX and torch do not survive a fork. It never imports the script that
started it, so a script needs no guard around its entry point.
"""

import os
import pickle
import queue
import signal
import sys
import threading
from typing import IO, Any

_LENGTH = 8  # bytes that tell how long a message is


def send(stream: IO[bytes], message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(_LENGTH, "big"))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side has ended.
    """
    length = stream.read(_LENGTH)
    data = stream.read(int.from_bytes(length, "big")) if len(length) == _LENGTH else b""
    if not data or len(data) < int.from_bytes(length, "big"):
        raise EOFError("the other process has ended")
    return pickle.loads(data)


def main() -> None:
    """Serve until the process that started this one ends, however that ends: it closes what they speak through."""
    try:
        _serve()
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _serve() -> None:
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints must not get between the answers
    # Ctrl-C is the starter's to handle: it has the results and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = receive(incoming)
    from bpsearch.runners.chunks import Site

    send(outgoing, None)  # ready
    site, tasks = Site(), queue.SimpleQueue[Any]()
    # Messages are read beside the work: two processes that both write and do not read would wait for each other.
    threading.Thread(target=_listen, args=(incoming, tasks), daemon=True).start()
    while True:
        ticket, chunk, blobs = tasks.get()
        answer = site.run(chunk, blobs)
        _keep_torch_to_one_thread()
        send(outgoing, (ticket, answer))


def _listen(incoming: IO[bytes], tasks: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            tasks.put(receive(incoming))
    except EOFError:
        os._exit(0)  # at once: nobody waits for what is being run, and an environment's threads must not stay


def _keep_torch_to_one_thread() -> None:
    """The cores are for other workers. Torch is there once a policy has needed it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
