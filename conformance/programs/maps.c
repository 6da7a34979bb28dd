// mmap of a host file and of a tmpfs file, private and shared, against read and write and across fork.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }

static void shared(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, 3 * 4096)) fail(path);
    char *p = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *q = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096);
    char *r = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED || q == MAP_FAILED || r == MAP_FAILED) fail("mmap");
    strcpy(p + 4096, "through the mapping");
    char buf[64] = "";
    if (pread(fd, buf, 19, 4096) != 19) fail("pread");
    printf("read: %s; other mapping: %s; private: %s\n", buf, q, r + 4096);
    if (pwrite(fd, "by write   ", 11, 4096) != 11) fail("pwrite");
    printf("mapping after write: %.11s %.11s\n", p + 4096, q);
    strcpy(r + 4096, "private copy");
    printf("shared is unchanged: %d\n", strncmp(p + 4096, "by write", 8) == 0);
    pid_t pid = fork();
    if (pid == 0) { strcpy(p, "from the child"); strcpy(r, "child's own"); _exit(0); }
    waitpid(pid, NULL, 0);
    printf("parent sees: %s / %d\n", p, r[0]);
    if (msync(p, 4096, MS_SYNC)) fail("msync");
    // Truncated under the mapping and grown again: zeroes.
    if (ftruncate(fd, 4096) || ftruncate(fd, 3 * 4096)) fail("ftruncate");
    printf("after truncation: %d\n", p[4096]);
    munmap(p, 3 * 4096);
    close(fd);
    unlink(path);
}

static void private(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) fail(path);
    long size = lseek(fd, 0, SEEK_END);
    unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) fail("mmap");
    close(fd);
    unsigned long a = 0, b = 0;
    for (long i = 0; i < size; i++) a = a * 31 + p[i];
    for (long i = 0; i < size; i += 100) p[i]++;
    for (long i = 0; i < size; i++) b = b * 31 + p[i];
    printf("%ld bytes, sum %lx, changed %d\n", size, a, a != b);
    if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(path, O_RDONLY), 0) == MAP_FAILED) puts("shared for writing refused");
    munmap(p, size);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) shared(argv[i]);
    private("/bin/ls");
    private(argv[0]);
    return 0;
}
