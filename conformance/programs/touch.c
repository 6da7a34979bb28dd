// A 1 GiB anonymous mapping, every page touched.
#include <stdio.h>
#include <sys/mman.h>

int main(void) {
    size_t size = 1ul << 30;
    unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { perror("mmap"); return 1; }
    unsigned long sum = 0;
    for (size_t i = 0; i < size; i += 4096) { sum += p[i]; p[i] = 1; }
    for (size_t i = 0; i < size; i += 4096) sum += p[i];
    printf("%lu\n", sum);
    if (munmap(p, size / 2)) { perror("munmap"); return 1; }
    if (madvise(p + size / 2, size / 2, MADV_DONTNEED)) { perror("madvise"); return 1; }
    printf("%d\n", p[size - 4096]);
    return 0;
}
