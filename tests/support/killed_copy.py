"""opsctl, killed while it writes the N-th file of the copy of step 50: `python killed_copy.py N WORDS...`"""

import resource
import signal
import sys

from opsctl.cli import main

files_left = int(sys.argv.pop(1))


def kill_at_file(event: str, arguments: tuple[object, ...]) -> None:
    global files_left  # noqa: PLW0603 - an audit hook has no other place for its state
    if event == "open" and ".offloading-step-0000050" in str(arguments[0]) and arguments[1] == "w":
        files_left -= 1
        if not files_left:  # the kernel kills a process that exceeds the limit, unless SIGXFSZ is ignored
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


sys.addaudithook(kill_at_file)
main()
