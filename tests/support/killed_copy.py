"""opsctl, killed while it writes the N-th file of the copy of step 50: `python killed_copy.py N WORDS...`."""

import os
import resource
import signal
import sys

from opsctl.cli import main

left = int(sys.argv.pop(1))


def limit_file_size(event: str, arguments: tuple[object, ...]) -> None:
    global left  # noqa: PLW0603 - an audit hook has no place of its own
    if event == "open" and ".offloading-step-0000050" in str(arguments[0]) and int(str(arguments[2])) & os.O_WRONLY:
        left -= 1
        if not left:  # the kernel kills a process that exceeds the limit, unless the process ignores SIGXFSZ
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


sys.addaudithook(limit_file_size)
main()
