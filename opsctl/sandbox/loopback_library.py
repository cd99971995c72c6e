"""A shared library with one function, `bind`, made without a compiler. Programs that load it bind to loopback only.

Slurm's daemons bind to every address of the machine, or to the address that the host name resolves to. No setting of
any version of Slurm names another address. Loaded into these daemons alone (LD_PRELOAD), this `bind` replaces the C
library's. An IPv4 address becomes 127.0.0.1, an IPv6 address becomes the library's address, other sockets do not
change. No privileges or namespaces are needed.
"""

import ipaddress
import os
from pathlib import Path

MACHINES = ("x86_64", "aarch64")
"""The processors with a listing of the library."""


def is_supported(machine: str | None = None) -> bool:
    """Return whether there is a library for this processor."""
    return (machine or os.uname().machine) in MACHINES


def build_library(ipv6_address: str, machine: str | None = None) -> bytes:
    """Return the bytes of the library file. IPv6 sockets bind to `ipv6_address`."""
    listing = Path(__file__).with_name(f"loopback_{machine or os.uname().machine}.asm")
    library, address = b"", ipaddress.IPv6Address(ipv6_address).packed
    for line in listing.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].partition("|")[0].split()
        if words[:1] == ["at"]:
            library = library.ljust(int(words[1], 16), b"\0")
        elif words:
            library += address if words == ["SIX"] else bytes.fromhex(words[0])
    return library
