# int bind(int socket, sockaddr *address, int length): change a copy of the address, then call libc's `syscall`.
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
