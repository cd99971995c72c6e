# A shared library with one function, int bind(int socket, sockaddr *address, int length): change a copy of the address,
# then call libc's `syscall`. Bytes in hexadecimal | their meaning; `at` is the place in the file and in memory; SIX is
# replaced by the IPv6 address. Pages of up to 64 KiB keep code and data apart.
7f454c46020101000000000000000000 | ELF, 64 bits, little endian
0300b700                         | a shared object for aarch64
01000000                         | version 1
0000000000000000                 | no entry
4000000000000000                 | program headers
0000000000000000                 | no sections
00000000                         | no flags
400038000400                     | a header of 64 bytes, 4 program headers of 56 bytes
400000000000                     | no section headers
0100000005000000                 | code, read and execute
0000000000000000                 |   offset
00000000000000000000000000000000 |   address
40050000000000004005000000000000 |   size in the file and in memory
0000010000000000                 |   alignment
0100000006000000                 | data, read and write
0000010000000000                 |   offset
00000100000000000000010000000000 |   address
a000000000000000a000000000000000 |   size in the file and in memory
0000010000000000                 |   alignment
0200000006000000                 | dynamic section
1000010000000000                 |   offset
10000100000000001000010000000000 |   address
90000000000000009000000000000000 |   size in the file and in memory
0800000000000000                 |   alignment
51e5746406000000                 | stack, not executable
0000000000000000                 |   offset
00000000000000000000000000000000 |   address
00000000000000000000000000000000 |   size in the file and in memory
0800000000000000                 |   alignment
at 400
23004079                         | ldrh w3, [x1]    the address family
7f080071                         | cmp  w3, AF_INET
20010054                         | b.eq inet
7f280071                         | cmp  w3, AF_INET6
e0010054                         | b.eq inet6
e303022a                         | mov  w3, w2
e20301aa                         | mov  x2, x1
e103002a                         | mov  w1, w0
001980d2                         | mov  x0, SYS_bind
f0de0758                         | ldr  x16, syscall
00021fd6                         | br   x16
ffc300d1                         | inet: sub sp, sp, 48
fe1300f9                         | str  x30, [sp, 32]
2000c03d                         | ldr  q0, [x1]
e003803d                         | str  q0, [sp]
e40f8052                         | mov  w4, 127
0420a072                         | movk w4, 0x100, lsl 16
e40700b9                         | str  w4, [sp, 4]
08000014                         | b    call
ffc300d1                         | inet6: sub sp, sp, 48
fe1300f9                         | str  x30, [sp, 32]
2000c03d                         | ldr  q0, [x1]
e003803d                         | str  q0, [sp]
a001009c                         | ldr  q0, six
e083803c                         | stur q0, [sp, 8]
ff1b00b9                         | str  wzr, [sp, 24]    the scope
e303022a                         | call: mov w3, w2
e2030091                         | mov  x2, sp
e103002a                         | mov  w1, w0
001980d2                         | mov  x0, SYS_bind
50dc0758                         | ldr  x16, syscall
00023fd6                         | blr  x16
fe1340f9                         | ldr  x30, [sp, 32]
ffc30091                         | add  sp, sp, 48
c0035fd6                         | ret
00000000                         | padding
SIX                              | six
000000000000000000000000000000000000000000000000 | no symbol
010000001200000000000000000000000000000000000000 | syscall, of another library
090000001200010000040000000000000000000000000000 | bind, at 400
0000000000000000                 | padding
000001000000000001040000010000000000000000000000 | relocation: the address of syscall at 10000
0000000000000000                 | padding
010000000300000002000000000000000000000001000000 | hash table: one bucket, three symbols
0000000000000000                 | padding
0073797363616c6c0062696e6400     | names: syscall, bind
0000                             | padding
at 10000
00000000000000000000000000000000 | syscall, filled in by the linker
04000000000000001005000000000000 | dynamic: hash table
05000000000000003005000000000000 | dynamic: names
0a000000000000000e00000000000000 | dynamic: their size
0600000000000000a004000000000000 | dynamic: symbols
0b000000000000001800000000000000 | dynamic: size of a symbol
0700000000000000f004000000000000 | dynamic: relocations
08000000000000001800000000000000 | dynamic: their size
09000000000000001800000000000000 | dynamic: size of a relocation
00000000000000000000000000000000 | dynamic: end
