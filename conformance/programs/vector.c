// x87, SSE, AVX and AVX-512 registers and mxcsr survive signals and system calls.
#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static int avx, avx512;

__attribute__((target("avx512f"))) static void spoil512(void) {
    asm volatile("vpternlogd $0xff, %%zmm0, %%zmm0, %%zmm0; vmovdqa64 %%zmm0, %%zmm16; vmovdqa64 %%zmm0, %%zmm31; kxnorw %%k1, %%k1, %%k1"
                 ::: "xmm0", "xmm16", "xmm31", "k1");
}
__attribute__((target("avx"))) static void spoil256(void) {
    asm volatile("vxorps %%ymm0, %%ymm0, %%ymm0; vxorps %%ymm1, %%ymm1, %%ymm1; vxorps %%ymm15, %%ymm15, %%ymm15" ::: "xmm0", "xmm1", "xmm15");
}
static void on_signal(int s) {
    (void)s;
    signals++;
    unsigned csr = 0x1f80 | 0x6000;
    if (avx512) spoil512();
    if (avx) spoil256();
    asm volatile("ldmxcsr %0; fninit; fld1; fldz; pxor %%xmm3, %%xmm3" :: "m"(csr) : "xmm3");
}


__attribute__((target("avx"))) static int loop256(void) {
    unsigned char in[64], out[64];
    for (int i = 0; i < 64; i++) in[i] = i * 7 + 1;
    long n = 3000;
    asm volatile("vmovdqu (%1), %%ymm1; vmovdqu 32(%1), %%ymm15\n"
                 "1: mov $102, %%eax; syscall; pause; pause; sub $1, %0; jnz 1b\n"
                 "vmovdqu %%ymm1, (%2); vmovdqu %%ymm15, 32(%2); vzeroupper"
                 : "+r"(n) : "r"(in), "r"(out) : "rax", "rcx", "r11", "memory", "xmm1", "xmm15");
    return memcmp(in, out, 64);
}
__attribute__((target("avx512f"))) static int loop512(void) {
    unsigned char in[128], out[128];
    for (int i = 0; i < 128; i++) in[i] = i * 3 + 1;
    long n = 3000;
    unsigned k = 0x1234;
    asm volatile("vmovdqu64 (%2), %%zmm16; vmovdqu64 64(%2), %%zmm31; kmovw %1, %%k1\n"
                 "1: mov $102, %%eax; syscall; pause; pause; sub $1, %0; jnz 1b\n"
                 "vmovdqu64 %%zmm16, (%3); vmovdqu64 %%zmm31, 64(%3); kmovw %%k1, %1; vzeroupper"
                 : "+r"(n), "+r"(k) : "r"(in), "r"(out) : "rax", "rcx", "r11", "memory", "xmm16", "xmm31", "k1");
    return memcmp(in, out, 128) || k != 0x1234;
}
static int loop_sse(void) {
    unsigned char in[32], out[32];
    for (int i = 0; i < 32; i++) in[i] = i * 5 + 1;
    long n = 3000;
    unsigned csr = 0x1f80 | 0x2000, back = 0;
    double x = 3.25, y = 0;
    asm volatile("ldmxcsr %4; fldl %6; movdqu (%2), %%xmm3; movdqu 16(%2), %%xmm12\n"
                 "1: mov $102, %%eax; syscall; pause; pause; sub $1, %0; jnz 1b\n"
                 "movdqu %%xmm3, (%3); movdqu %%xmm12, 16(%3); fstpl %5; stmxcsr %1"
                 : "+r"(n), "=m"(back) : "r"(in), "r"(out), "m"(csr), "m"(y), "m"(x)
                 : "rax", "rcx", "r11", "memory", "xmm3", "xmm12");
    csr = 0x1f80;
    asm volatile("ldmxcsr %0" :: "m"(csr));
    return memcmp(in, out, 32) || (back & 0x6000) != 0x2000 || y != 3.25;
}

int main(void) {
    __builtin_cpu_init();
    avx = __builtin_cpu_supports("avx") != 0;
    avx512 = __builtin_cpu_supports("avx512f") != 0;
    signal(SIGALRM, on_signal);
    struct itimerval t = { { 0, 1000 }, { 0, 1000 } };
    setitimer(ITIMER_REAL, &t, NULL);
    int bad = 0, rounds = 0;
    while (rounds < 10 || signals < 50) {
        bad |= loop_sse();
        if (avx) bad |= loop256() << 1;
        if (avx512) bad |= loop512() << 2;
        rounds++;
    }
    printf("avx %d avx512 %d bad %d\n", avx, avx512, bad);
    return bad;
}
