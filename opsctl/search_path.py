"""Order the directories in which Python searches for modules. Imports nothing that a user's directory could replace."""

import os  # os and sys, with the modules that they import, are part of the interpreter
import sys


def put_user_directories_last() -> None:
    """Search PYTHONPATH and the start directory after Python's own library and the installed packages.

    A user's `csv.py` or `json.py` then replaces nothing, and a package that is only on PYTHONPATH, where environment
    modules of clusters install packages, is still importable. The environment is unchanged: jobs inherit PYTHONPATH.
    """
    library = os.path.dirname(os.__file__)
    python_path = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    users = {os.path.abspath(directory) for directory in python_path.split(os.pathsep)} if python_path else set()
    if not getattr(sys.flags, "safe_path", False):  # new in Python 3.11; a container may have an older one
        users.add(sys.path[0])  # the script's directory, or the working directory
    users -= {library, os.path.join(library, "lib-dynload")}
    sys.path.sort(key=lambda directory: directory in users)  # stable: both halves keep their order
