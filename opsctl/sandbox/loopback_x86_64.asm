# int bind(int socket, sockaddr *address, int length): change a copy of the address, then call libc's `syscall`.
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
