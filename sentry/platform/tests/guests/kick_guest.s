    .pushsection .rodata.kick_guest, "a", @progbits
    .globl kick_guest_start, kick_guest_end, kick_rounds, kick_vectors
    .globl kick_trapped, kick_copied, kick_answered, kick_futex, kick_ping, kick_pong, kick_computing, kick_memory
    .globl kick_waiting, kick_once, kick_once_call, kick_once_spin
kick_guest_start:

    # A system call with all flags set. Afterwards everything but rax must be as `syscall` leaves it.
    .macro guest_call number
    push r9
    push r8
    push r10
    push rdx
    push rsi
    push rdi
    push {FLAGS}
    popfq
    mov eax, \number
    syscall
9:  pushfq
    cld
    push rax
    lea rax, [rip + 9b]
    cmp rax, rcx
    jne kick_bad
    cmp r11, {FLAGS}
    jne kick_bad
    cmp r11, [rsp + 8]
    jne kick_bad
    cmp rdi, [rsp + 16]
    jne kick_bad
    cmp rsi, [rsp + 24]
    jne kick_bad
    cmp rdx, [rsp + 32]
    jne kick_bad
    cmp r10, [rsp + 40]
    jne kick_bad
    cmp r8, [rsp + 48]
    jne kick_bad
    cmp r9, [rsp + 56]
    jne kick_bad
    pop rax
    lea rsp, [rsp + 56]
    .endm

    .macro expect register, value
    mov rcx, \value
    cmp \register, rcx
    jne kick_bad
    .endm

    .macro again label
    call kick_check
    inc qword ptr [rip + kick_rounds]
    jmp \label
    .endm

kick_bad:
    ud2

kick_load:
    mov rbx, {C0}
    mov rbp, {C1}
    mov r12, {C2}
    mov r13, {C3}
    mov r14, {C4}
    mov r15, {C5}
    xor edi, edi
    xor esi, esi
    xor edx, edx
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    lea rax, [rip + kick_vectors]
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu ymm\n, [rax + 32 * \n]
    .endr
    ldmxcsr [rip + kick_mxcsr]
    fninit
    fldcw [rip + kick_control]
    fldpi
    fld1
    fldl2t
    ret

    # Clobbers rax, rcx, rdi, rsi.
kick_check:
    expect rbx, {C0}
    expect rbp, {C1}
    expect r12, {C2}
    expect r13, {C3}
    expect r14, {C4}
    expect r15, {C5}
    sub rsp, 520
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu [rsp + 32 * \n], ymm\n
    .endr
    mov rdi, rsp
    lea rsi, [rip + kick_vectors]
    mov ecx, 64
    cld
    repe cmpsq
    jne kick_bad
    stmxcsr [rsp]
    mov eax, [rsp]
    cmp eax, [rip + kick_mxcsr]
    jne kick_bad
    fnstcw [rsp]
    mov ax, [rsp]
    cmp ax, [rip + kick_control]
    jne kick_bad
    add rsp, 520
    ret

kick_trapped:
    call kick_load
2:  mov rdi, 7
    guest_call 110
    expect rax, 1337
    again 2b

    # The answer comes with bytes to be copied: the result, twice.
kick_copied:
    call kick_load
2:  sub rsp, 16
    mov rdi, rsp
    guest_call 96
    cmp rax, [rsp]
    jne kick_bad
    cmp rax, [rsp + 8]
    jne kick_bad
    add rsp, 16
    again 2b

kick_answered:
    call kick_load
2:  guest_call 39
    expect rax, 4242
    guest_call 186
    expect rax, 4343
    guest_call 24
    expect rax, 0
    sub rsp, 16
    mov rdi, 1
    mov rsi, rsp
    guest_call 228
    expect rax, 0
    add rsp, 16
    again 2b

    # Alone: wakes nobody, waits for a value that is not there, and for 10 microseconds.
kick_futex:
    call kick_load
2:  push 10000
    push 0
    push 5
    mov rdi, rsp
    mov rsi, 129
    mov rdx, 1
    guest_call 202
    expect rax, 0
    mov rsi, 128
    mov rdx, 6
    xor r10d, r10d
    guest_call 202
    expect rax, -11
    mov rdx, 5
    lea r10, [rsp + 8]
    guest_call 202
    expect rax, -110
    add rsp, 24
    again 2b

    # Waits for ever, until it is interrupted.
kick_waiting:
    call kick_load
2:  push 5
    mov rdi, rsp
    mov rsi, 128
    mov rdx, 5
    xor r10d, r10d
    guest_call 202
    expect rax, -4
    add rsp, 8
    again 2b

    # Two threads of one process: one counts up and waits until the other has followed.
kick_ping:
    call kick_load
2:  lea rdi, [rip + kick_first]
    inc dword ptr [rdi]
    mov rsi, 129
    mov rdx, 1
    guest_call 202
3:  lea rdi, [rip + kick_second]
    mov edx, [rdi]
    cmp edx, [rip + kick_first]
    je 4f
    mov rsi, 128
    xor r10d, r10d
    guest_call 202
    cmp rax, 0
    je 3b
    expect rax, -11
    jmp 3b
4:  again 2b

kick_pong:
    call kick_load
2:  lea rdi, [rip + kick_first]
    mov edx, [rdi]
    cmp edx, [rip + kick_second]
    jne 3f
    mov rsi, 128
    xor r10d, r10d
    guest_call 202
    cmp rax, 0
    je 2b
    expect rax, -11
    jmp 2b
3:  lea rdi, [rip + kick_second]
    mov [rdi], edx
    mov rsi, 129
    mov rdx, 1
    guest_call 202
    call kick_check
    jmp 2b

kick_computing:
    call kick_load
2:  xor eax, eax
    xor ecx, ecx
    mov rdi, rbx
    mov rsi, rbp
    mov rdx, r12
    mov r8, r13
    mov r9, r14
    mov r10, r15
    mov r11, rbx
3:  lea rax, [rax + 3]
    lea rcx, [rcx + 1]
    cmp rcx, 1000
    jne 3b
    cmp rax, 3000
    jne kick_bad
    cmp rdi, rbx
    jne kick_bad
    cmp rsi, rbp
    jne kick_bad
    cmp rdx, r12
    jne kick_bad
    cmp r8, r13
    jne kick_bad
    cmp r9, r14
    jne kick_bad
    cmp r10, r15
    jne kick_bad
    cmp r11, rbx
    jne kick_bad
    again 2b

    # Maps three pages, protects, discards, moves and unmaps.
kick_memory:
    call kick_load
2:  xor edi, edi
    mov rsi, 0x3000
    mov rdx, 3
    mov r10, 0x22
    mov r8, -1
    xor r9d, r9d
    guest_call 9
    test rax, 0xfff
    jnz kick_bad
    push rax
    mov byte ptr [rax], 42
    mov byte ptr [rax + 0x1000], 43
    mov rdi, rax
    mov rsi, 0x1000
    mov rdx, 1
    guest_call 10
    expect rax, 0
    mov rdi, [rsp]
    add rdi, 0x1000
    mov rdx, 4
    guest_call 28
    expect rax, 0
    mov rdi, [rsp]
    mov rsi, 0x1000
    mov rdx, 3
    guest_call 10
    expect rax, 0
    mov rdi, [rsp]
    mov rsi, 0x3000
    mov rdx, 0x5000
    mov r10, 1
    xor r8d, r8d
    guest_call 25
    mov [rsp], rax
    cmp byte ptr [rax], 42
    jne kick_bad
    cmp byte ptr [rax + 0x1000], 0
    jne kick_bad
    mov byte ptr [rax + 0x4000], 44
    mov rdi, rax
    mov rsi, 0x5000
    guest_call 11
    expect rax, 0
    pop rax
    again 2b

    # One call that is answered with bytes, and then none any more. (Single-stepped: pushfq would show the trap flag.)
kick_once:
    call kick_load
kick_once_call:
    lea rdi, [rsp - 64]
    mov rsi, rbx
    mov rdx, rbp
    mov r10, r12
    mov r8, r13
    mov r9, r14
    push {FLAGS}
    popfq
    mov eax, 96
    syscall
    jnc kick_bad
    jnp kick_bad
    jnz kick_bad
    jns kick_bad
    jno kick_bad
    cld
    cmp rax, [rdi]
    jne kick_bad
    cmp rax, [rdi + 8]
    jne kick_bad
    inc qword ptr [rip + kick_rounds]
kick_once_spin:
    cmp rsi, rbx
    jne kick_bad
    cmp rdx, rbp
    jne kick_bad
    cmp r10, r12
    jne kick_bad
    cmp r8, r13
    jne kick_bad
    cmp r9, r14
    jne kick_bad
    lea rcx, [rsp - 64]
    cmp rdi, rcx
    jne kick_bad
    jmp kick_once_spin

    .balign 64
kick_first:
    .long 0
    .balign 64
kick_second:
    .long 0
    .balign 64
kick_rounds:
    .quad 0
kick_mxcsr:
    .long {MXCSR}
kick_control:
    .word {X87_CONTROL}
    .balign 32
kick_vectors:
    .irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
    .quad 0x0101010101010101 * \n, 0x1000000000000001 + \n, 0x2000000000000002 + \n, 0x3000000000000003 + \n
    .endr
kick_guest_end:
    .popsection
