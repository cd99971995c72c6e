"""A shared library with one function, `bind`, built without a compiler. Programs that load it bind to loopback only.

Slurm's daemons bind to every address of the machine, or to the address that the host name resolves to. No setting of
any version of Slurm names another address. Loaded into these daemons alone (LD_PRELOAD), this `bind` replaces the C
library's. An IPv4 address becomes 127.0.0.1, an IPv6 address becomes the library's address, other sockets do not
change. No privileges or namespaces are needed.
"""

import ipaddress
import os
import struct
from dataclasses import dataclass
from pathlib import Path

CODE_AT, DATA_AT = 0x400, 0x10000
"""Addresses in the library. Pages of up to 64 KiB keep code and data apart."""
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ, WRITE, EXECUTE = 4, 2, 1
DT_NULL = 0
"""Ends the table of dynamic entries."""
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT = 4, 5, 6, 7, 8, 9, 10, 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of processor: the number in ELF, the relocation that stores an address."""

    number: int
    relocation: int


MACHINES = {
    "x86_64": Machine(number=62, relocation=6),
    "aarch64": Machine(number=183, relocation=1025),
}


def is_supported(machine: str | None = None) -> bool:
    """Return whether the library has code for this processor."""
    return (machine or os.uname().machine) in MACHINES


def build_library(ipv6_address: str, machine: str | None = None) -> bytes:
    """Return the bytes of the library file. IPv6 sockets bind to `ipv6_address`."""
    name = machine or os.uname().machine
    target = MACHINES[name]
    address_at = CODE_AT + len(assemble(name, b""))
    code = assemble(name, ipaddress.IPv6Address(ipv6_address).packed, address_at)
    names = b"\0syscall\0bind\0"
    symbols = bytes(24) + symbol(names.index(b"syscall"), 0, 0) + symbol(names.index(b"bind"), 1, CODE_AT)
    hashes = struct.pack("<6I", 1, 3, 2, 0, 0, 1)
    relocations = struct.pack("<QQq", DATA_AT, 1 << 32 | target.relocation, 0)
    tables_at = CODE_AT + len(code)
    addresses, tables = {}, b""
    for tag, table in ((DT_SYMTAB, symbols), (DT_RELA, relocations), (DT_HASH, hashes), (DT_STRTAB, names)):
        addresses[tag] = tables_at + len(tables)
        tables += table + bytes(-len(table) % 16)
    entries = {
        DT_HASH: addresses[DT_HASH],
        DT_STRTAB: addresses[DT_STRTAB],
        DT_STRSZ: len(names),
        DT_SYMTAB: addresses[DT_SYMTAB],
        DT_SYMENT: 24,
        DT_RELA: addresses[DT_RELA],
        DT_RELASZ: 24,
        DT_RELAENT: 24,
        DT_NULL: 0,
    }
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries.items())
    text = code + tables
    data = bytes(16) + dynamic
    segments = (
        segment(PT_LOAD, READ | EXECUTE, 0, CODE_AT + len(text)),
        segment(PT_LOAD, READ | WRITE, DATA_AT, len(data)),
        segment(PT_DYNAMIC, READ | WRITE, DATA_AT + 16, len(dynamic)),
        segment(PT_GNU_STACK, READ | WRITE, 0, 0),
    )
    head = header(target.number) + b"".join(segments)
    return (head.ljust(CODE_AT, b"\0") + text).ljust(DATA_AT, b"\0") + data


def assemble(machine: str, ipv6_address: bytes, address_at: int = CODE_AT) -> bytes:
    """Return the function's code with its distances, followed by the IPv6 address.

    A line of the source holds machine code and its instruction; GOT and SIX are the distances to `syscall` and to the
    IPv6 address.
    """
    code = bytearray()
    for line in Path(__file__).with_name(f"loopback_{machine}.asm").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        words = line.partition("|")[0].split()
        symbols = {"GOT": DATA_AT, "SIX": address_at}
        if machine == "x86_64":
            # A distance counts from the end of the instruction: its first bytes and the four bytes of the distance.
            end = CODE_AT + len(code) + len(words[0]) // 2 + 4
            for word in words:
                code += struct.pack("<i", symbols[word] - end) if word in symbols else bytes.fromhex(word)
        else:
            (instruction,) = struct.unpack("<I", bytes.fromhex(words[-1]))
            if words[0] in symbols:
                instruction |= ((symbols[words[0]] - CODE_AT - len(code)) // 4 & 0x7FFFF) << 5
            code += struct.pack("<I", instruction)
    return bytes(code) + bytes(-len(code) % 16) + ipv6_address


def symbol(name: int, section: int, value: int) -> bytes:
    """Return an entry of the symbol table: a global function. Section 0 means a function of another library."""
    return struct.pack("<IBBHQQ", name, 0x12, 0, section, value, 0)


def segment(kind: int, flags: int, at: int, size: int) -> bytes:
    """Return an entry of the program header table; file offset and address are equal."""
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, DATA_AT if kind == PT_LOAD else 8)


def header(machine: int) -> bytes:
    """Return the ELF header of a shared object with four segments."""
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return identity + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
