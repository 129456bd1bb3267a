"""Sandbox: a function in a fresh process that may build networks. Root's rights over its own namespaces, no others.

A user namespace gives them to an ordinary user where the system allows it; it must be entered before the first thread
starts (torch starts some when it is imported), hence the fresh process. No torch here.
"""

import fcntl
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fivedim.errors import UserError
from fivedim.lab import failures
from fivedim.lab.failures import Failure
from fivedim.lab.ranks import RankError, die_with_parent
from fivedim.lab.watch import death

# as any user; as root, where users may not
WAYS = (("unshare", "--map-root-user", "--net"), ("unshare", "--net"))
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
HELP = "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor) or be root"


def call(fn: Callable, *args) -> Any:
    """`fn(*args)` in a sandbox, with a network of its own: a loopback device, where ranks can meet.

    Function, arguments and value are pickled. The process ends with this one. Raises UserError where the system allows
    no sandbox, RankError where `fn` fails: its RankError if it raises one.
    """
    with tempfile.TemporaryDirectory(prefix="fivedim-") as folder:
        Path(folder, "call").write_bytes(pickle.dumps((fn, args)))
        command = [*way(), sys.executable, "-m", "fivedim.lab.sandbox", folder]
        imports = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        code = subprocess.run(command, env=os.environ | imports).returncode
        if code:
            raise RankError(
                failures.cause(Path(folder)) or Failure(who="node 0", kind=death(code), time_ns=time.time_ns())
            )
        return pickle.loads(Path(folder, "value").read_bytes())


def way() -> tuple[str, ...]:
    """The command that enters a sandbox here. Raises UserError where none does, with the system's words."""
    refused = {command: refusal(command) for command in WAYS}
    if all(refused.values()):
        raise UserError(f"no network namespaces here: {refused[WAYS[0]]}: {HELP}")
    return next(command for command, said in refused.items() if not said)


def refusal(command: tuple[str, ...]) -> str:
    """What the system says against a way into a sandbox; empty where it works."""
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return "unshare is not on PATH (package util-linux)"
    return " ".join(tried.stderr.split()) or f"unshare ended with status {tried.returncode}" if tried.returncode else ""


def main(folder: Path) -> int:
    """The process in the sandbox: call, and leave the value or the failure."""
    die_with_parent()
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    fn, args = pickle.loads((folder / "call").read_bytes())
    try:
        (folder / "value").write_bytes(pickle.dumps(fn(*args)))
    except RankError as error:
        error.failure.write(folder)
        return error.code
    except Exception as error:
        failures.of_exception("node 0", error).write(folder)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
