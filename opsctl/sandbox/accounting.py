"""slurmdbd and its database, in directories and on sockets of their own."""

from __future__ import annotations
