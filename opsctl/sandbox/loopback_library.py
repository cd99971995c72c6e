"""A shared library with one function, `bind`, built without a compiler. Programs that load it bind to loopback only.

Slurm's daemons bind to every address of the machine, or to the address that the host name resolves to. No setting of
any version of Slurm names another address. Loaded into these daemons alone (LD_PRELOAD), this `bind` replaces the C
library's. An IPv4 address becomes 127.0.0.1, an IPv6 address becomes the library's address, other sockets do not
change. No privileges or namespaces are needed.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from dataclasses import dataclass

# int bind(int socket, sockaddr *address, int length): change a copy of the address, then call libc's `syscall`.
# A line holds machine code and its instruction. GOT and SIX are the distances to `syscall` and to the IPv6 address.
X86_64 = """
0fb706           | movzx  eax, word [rsi]    the address family
83f802           | cmp    eax, AF_INET
7419             | je     inet
83f80a           | cmp    eax, AF_INET6
7429             | je     inet6
89d1             | mov    ecx, edx
4889f2           | mov    rdx, rsi
89fe             | mov    esi, edi
bf31000000       | mov    edi, SYS_bind
31c0             | xor    eax, eax
ff25 GOT         | jmp    [syscall]
4883ec28         | inet:  sub rsp, 40
0f1006           | movups xmm0, [rsi]
0f110424         | movups [rsp], xmm0
c74424047f000001 | mov    dword [rsp+4], 127.0.0.1
eb1f             | jmp    call
4883ec28         | inet6: sub rsp, 40
0f1006           | movups xmm0, [rsi]
0f110424         | movups [rsp], xmm0
0f1005 SIX       | movups xmm0, [six]
0f11442408       | movups [rsp+8], xmm0
c744241800000000 | mov    dword [rsp+24], 0    the scope
89d1             | call:  mov ecx, edx
4889e2           | mov    rdx, rsp
89fe             | mov    esi, edi
bf31000000       | mov    edi, SYS_bind
31c0             | xor    eax, eax
ff15 GOT         | call   [syscall]
4883c428         | add    rsp, 40
c3               | ret
"""
AARCH64 = """
23004079     | ldrh w3, [x1]    the address family
7f080071     | cmp  w3, AF_INET
20010054     | b.eq inet
7f280071     | cmp  w3, AF_INET6
e0010054     | b.eq inet6
e303022a     | mov  w3, w2
e20301aa     | mov  x2, x1
e103002a     | mov  w1, w0
001980d2     | mov  x0, SYS_bind
GOT 10000058 | ldr  x16, syscall
00021fd6     | br   x16
ffc300d1     | inet: sub sp, sp, 48
fe1300f9     | str  x30, [sp, 32]
2000c03d     | ldr  q0, [x1]
e003803d     | str  q0, [sp]
e40f8052     | mov  w4, 127
0420a072     | movk w4, 0x100, lsl 16
e40700b9     | str  w4, [sp, 4]
08000014     | b    call
ffc300d1     | inet6: sub sp, sp, 48
fe1300f9     | str  x30, [sp, 32]
2000c03d     | ldr  q0, [x1]
e003803d     | str  q0, [sp]
SIX 0000009c | ldr  q0, six
e083803c     | stur q0, [sp, 8]
ff1b00b9     | str  wzr, [sp, 24]    the scope
e303022a     | call: mov w3, w2
e2030091     | mov  x2, sp
e103002a     | mov  w1, w0
001980d2     | mov  x0, SYS_bind
GOT 10000058 | ldr  x16, syscall
00023fd6     | blr  x16
fe1340f9     | ldr  x30, [sp, 32]
ffc30091     | add  sp, sp, 48
c0035fd6     | ret
"""

CODE_AT, DATA_AT = 0x400, 0x10000
"""Addresses in the library. Pages of up to 64 KiB keep code and data apart."""
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ, WRITE, EXECUTE = 4, 2, 1
DT_NULL = 0
"""Ends the table of dynamic entries."""
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT = 4, 5, 6, 7, 8, 9, 10, 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of processor: the number in ELF, the relocation that stores an address, the code."""

    number: int
    relocation: int
    code: str


MACHINES = {
    "x86_64": Machine(number=62, relocation=6, code=X86_64),
    "aarch64": Machine(number=183, relocation=1025, code=AARCH64),
}


def is_supported(machine: str | None = None) -> bool:
    """Return whether the library has code for this processor."""
    return (machine or os.uname().machine) in MACHINES


def build_library(ipv6_address: str, machine: str | None = None) -> bytes:
    """Return the bytes of the library file. IPv6 sockets bind to `ipv6_address`."""
    target = MACHINES[machine or os.uname().machine]
    address_at = CODE_AT + len(assemble(target, b""))
    code = assemble(target, ipaddress.IPv6Address(ipv6_address).packed, address_at)
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


def assemble(target: Machine, ipv6_address: bytes, address_at: int = CODE_AT) -> bytes:
    """Return the function's code with its distances, followed by the IPv6 address."""
    code = bytearray()
    for line in target.code.strip().splitlines():
        words = line.partition("|")[0].split()
        symbols = {"GOT": DATA_AT, "SIX": address_at}
        if target.number == MACHINES["x86_64"].number:
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
