    # Entry points and gadgets. The seccomp filter lets host calls through only with the instruction
    # pointer between gadget_start and gadget_end.
    .section .text.gadget, "ax", @progbits
    .globl gadget_start, gadget_end
gadget_start:

    # stub_syscall(nr, a1..a5, [a6 on the stack]) -> raw result
    .globl stub_syscall
stub_syscall:
    mov rax, rdi
    mov rdi, rsi
    mov rsi, rdx
    mov rdx, rcx
    mov r10, r8
    mov r8, r9
    mov r9, [rsp + 8]
    syscall
    ret

    # stub_futex(uaddr, op, val, timeout, uaddr2, val3, [kicked on the stack]): futex(2), or -EINTR at once
    # if *kicked. The kick handler moves any rip between the check and the instruction to futex_kicked.
    .globl stub_futex, futex_check, futex_insn, futex_kicked
stub_futex:
    mov r10, rcx
    mov r11, [rsp + 8]
    mov eax, 202
futex_check:
    cmp dword ptr [r11], 0
    jne futex_kicked
futex_insn:
    syscall
    ret
futex_kicked:
    mov rax, -4
    ret

    # stub_leave(ucontext, kicked): back to the guest by rt_sigreturn, or stub_kicked(ucontext) if *kicked.
    .globl stub_leave, leave_check, leave_insn, leave_kicked
stub_leave:
    mov rsp, rdi
leave_check:
    cmp dword ptr [rsi], 0
    jne leave_kicked
    mov eax, 15
leave_insn:
    syscall
    ud2
leave_kicked:
    lea rsp, [rdi - 8]
    and rsp, -16
    call stub_kicked
    ud2

    # sa_restorer of handlers that return (faults in the stub, kicks).
    .globl stub_restorer
stub_restorer:
    mov eax, 15
    syscall
    ud2

    # stub_fork(arena descriptor, arena, child's rsp, control descriptor) -> pid or error, in the parent only.
    # The child has no stack of its own until it has mapped its arena over the inherited one.
    .globl stub_fork
stub_fork:
    push r12
    push r13
    push r14
    push r15
    mov r12, rdi
    mov r13, rsi
    mov r14, rdx
    mov r15, rcx
    mov eax, 56
    mov edi, {FORK_FLAGS}
    xor esi, esi
    xor edx, edx
    xor r10d, r10d
    xor r8d, r8d
    syscall
    test rax, rax
    jz 2f
    pop r15
    pop r14
    pop r13
    pop r12
    ret
2:
    mov eax, 9
    mov rdi, r13
    mov esi, {ARENA_SIZE}
    mov edx, 3
    mov r10d, 0x11
    mov r8, r12
    xor r9d, r9d
    syscall
    cmp rax, r13
    jne 3f
    mov rsp, r14
    mov rdi, r12
    mov rsi, r15
    call stub_fork_child
3:
    ud2

    # stub_thread(child's rsp) -> tid or error, in the parent only.
    .globl stub_thread
stub_thread:
    mov rsi, rdi
    mov eax, 56
    mov edi, {THREAD_FLAGS}
    xor edx, edx
    mov r10, rsi
    and r10, -{SLOT_SIZE}
    add r10, {ALIVE_OFFSET}
    xor r8d, r8d
    syscall
    test rax, rax
    jz 2f
    ret
2:
    call stub_thread_child
    ud2
gadget_end:

    # stub_leave_by_jump(ucontext, kicked, extended state, its components): as stub_leave, without a host call; for
    # a frame whose rcx is its rip, as `syscall` leaves them. Up to the last instruction but one rsp stays below the
    # frame, which a kick therefore leaves alone; at the last one every register but rip is the guest's.
    .globl stub_leave_by_jump, jump_check, jump_flags, jump_stack, jump_insn
stub_leave_by_jump:
    mov rsp, rdi
    mov rax, rcx
    mov r8, rdx
    mov rdx, rcx
    shr rdx, 32
jump_check:
    cmp dword ptr [rsi], 0
    jne leave_kicked
    xrstor [r8]
    mov r8, [rsp + {R8}]
    mov r9, [rsp + {R9}]
    mov r10, [rsp + {R10}]
    mov r11, [rsp + {R11}]
    mov r12, [rsp + {R12}]
    mov r13, [rsp + {R13}]
    mov r14, [rsp + {R14}]
    mov r15, [rsp + {R15}]
    mov rdi, [rsp + {RDI}]
    mov rsi, [rsp + {RSI}]
    mov rbp, [rsp + {RBP}]
    mov rbx, [rsp + {RBX}]
    mov rdx, [rsp + {RDX}]
    mov rax, [rsp + {RAX}]
    mov rcx, [rsp + {RCX}]
    push qword ptr [rsp + {EFLAGS}]
jump_flags:
    popfq
jump_stack:
    mov rsp, [rsp + {RSP}]
jump_insn:
    jmp rcx

    # The zygote's first call, which traps: it makes the frame that every spare leaves by.
    .globl stub_hello
stub_hello:
    mov eax, {HELLO_NR}
    syscall
    ud2

    # The sentry jumps here in the zygote, with rsp in slot 0.
    .globl stub_zygote
stub_zygote:
    and rsp, -16
    call stub_zygote_main
    ud2

    # ptrace platform: the tracer points rip here to have the operations in the mailbox run.
    .globl stub_ptrace_run, ptrace_done
stub_ptrace_run:
    cld
    and rsp, -16
    call stub_ptrace_operations
    # falls through after the last operation
    .globl stub_ptrace_stop
stub_ptrace_stop:
    int3
ptrace_done:
    ud2

    # Copies with fix-ups: a fault at one of the named instructions continues at its fix-up.
    # stub_copy(dst, src, len) -> bytes not copied
    .globl stub_copy, copy_insn, copy_fix
stub_copy:
    mov rcx, rdx
copy_insn:
    rep movsb
copy_fix:
    mov rax, rcx
    ret

    # stub_zero(dst, len) -> bytes not zeroed
    .globl stub_zero, zero_insn, zero_fix
stub_zero:
    mov rcx, rsi
    xor eax, eax
zero_insn:
    rep stosb
zero_fix:
    mov rax, rcx
    ret

    # stub_copy_string(dst, src, max) -> bytes copied, the NUL included; stops at a fault
    .globl stub_copy_string, string_insn, string_fix
stub_copy_string:
    xor eax, eax
    test rdx, rdx
    jz string_fix
3:
string_insn:
    mov cl, [rsi + rax]
    mov [rdi + rax], cl
    inc rax
    test cl, cl
    jz string_fix
    cmp rax, rdx
    jb 3b
string_fix:
    ret

    # stub_cmpxchg(address, old, new) -> what was there, or -EFAULT
    .globl stub_cmpxchg, cmpxchg_insn, cmpxchg_fix
stub_cmpxchg:
    mov eax, esi
cmpxchg_insn:
    lock cmpxchg [rdi], edx
    ret
cmpxchg_fix:
    mov rax, -14
    ret
