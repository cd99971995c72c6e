"""The command `opsctl`, and `python -m opsctl`, which batch scripts use: it needs no PATH."""

from opsctl.search_path import put_user_directories_last

put_user_directories_last()  # before anything else is imported

from opsctl.cli import main

if __name__ == "__main__":
    main()
