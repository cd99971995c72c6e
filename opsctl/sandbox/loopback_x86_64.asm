# A shared library with one function, int bind(int socket, sockaddr *address, int length): change a copy of the address,
# then call libc's `syscall`. Bytes in hexadecimal | their meaning; `at` is the place in the file and in memory; SIX is
# replaced by the IPv6 address. Pages of up to 64 KiB keep code and data apart.
7f454c46020101000000000000000000 | ELF, 64 bits, little endian
03003e00                         | a shared object for x86_64
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
20050000000000002005000000000000 |   size in the file and in memory
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
0fb706                           | movzx  eax, word [rsi]    the address family
83f802                           | cmp    eax, AF_INET
7419                             | je     inet
83f80a                           | cmp    eax, AF_INET6
7429                             | je     inet6
89d1                             | mov    ecx, edx
4889f2                           | mov    rdx, rsi
89fe                             | mov    esi, edi
bf31000000                       | mov    edi, SYS_bind
31c0                             | xor    eax, eax
ff25dffb0000                     | jmp    [syscall]
4883ec28                         | inet:  sub rsp, 40
0f1006                           | movups xmm0, [rsi]
0f110424                         | movups [rsp], xmm0
c74424047f000001                 | mov    dword [rsp+4], 127.0.0.1
eb1f                             | jmp    call
4883ec28                         | inet6: sub rsp, 40
0f1006                           | movups xmm0, [rsi]
0f110424                         | movups [rsp], xmm0
0f100528000000                   | movups xmm0, [six]
0f11442408                       | movups [rsp+8], xmm0
c744241800000000                 | mov    dword [rsp+24], 0    the scope
89d1                             | call:  mov ecx, edx
4889e2                           | mov    rdx, rsp
89fe                             | mov    esi, edi
bf31000000                       | mov    edi, SYS_bind
31c0                             | xor    eax, eax
ff1597fb0000                     | call   [syscall]
4883c428                         | add    rsp, 40
c3                               | ret
0000                             | padding
SIX                              | six
000000000000000000000000000000000000000000000000 | no symbol
010000001200000000000000000000000000000000000000 | syscall, of another library
090000001200010000040000000000000000000000000000 | bind, at 400
0000000000000000                 | padding
000001000000000006000000010000000000000000000000 | relocation: the address of syscall at 10000
0000000000000000                 | padding
010000000300000002000000000000000000000001000000 | hash table: one bucket, three symbols
0000000000000000                 | padding
0073797363616c6c0062696e6400     | names: syscall, bind
0000                             | padding
at 10000
00000000000000000000000000000000 | syscall, filled in by the linker
0400000000000000f004000000000000 | dynamic: hash table
05000000000000001005000000000000 | dynamic: names
0a000000000000000e00000000000000 | dynamic: their size
06000000000000008004000000000000 | dynamic: symbols
0b000000000000001800000000000000 | dynamic: size of a symbol
0700000000000000d004000000000000 | dynamic: relocations
08000000000000001800000000000000 | dynamic: their size
09000000000000001800000000000000 | dynamic: size of a relocation
00000000000000000000000000000000 | dynamic: end
