"""Where Python looks for modules when it runs opsctl. Imports nothing that a user's directory could replace."""

import os  # os and sys are part of the interpreter, as are the modules that they import
import sys


def put_user_directories_last() -> None:
    """Search PYTHONPATH and the start directory after Python's own library and the installed packages.

    A user's `csv.py` or `json.py` then replaces nothing, and a package that is only on PYTHONPATH, as clusters'
    environment modules install them, is found. The environment stays as it is: jobs inherit PYTHONPATH.
    """
    library = os.path.dirname(os.__file__)
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    users = {os.path.abspath(directory) for directory in given.split(os.pathsep)} if given else set()
    if not sys.flags.safe_path:
        users.add(sys.path[0])  # of the script, or the working directory
    users -= {library, os.path.join(library, "lib-dynload")}
    sys.path.sort(key=lambda directory: directory in users)  # stable: each half keeps its order
