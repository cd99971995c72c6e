"""The command `opsctl`. Batch scripts use `python -m opsctl`, which needs no PATH."""

from opsctl.search_path import put_user_directories_last

put_user_directories_last()  # before any other import

from opsctl.cli import main

if __name__ == "__main__":
    main()
