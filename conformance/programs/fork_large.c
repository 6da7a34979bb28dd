// fork of a process with 256 MiB of touched memory: both sides keep their own.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 256 << 20 };

static unsigned long sum(const unsigned char *p) {
    unsigned long s = 0;
    for (size_t i = 0; i < SIZE; i += 4096) s = s * 31 + p[i];
    return s;
}

int main(void) {
    unsigned char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { perror("mmap"); return 1; }
    for (size_t i = 0; i < SIZE; i += 4096) p[i] = i >> 12;
    unsigned long before = sum(p);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        if (pid < 0) { perror("fork"); return 1; }
        if (pid == 0) {
            int same = sum(p) == before;
            for (size_t i = 0; i < SIZE; i += 4096 * 16) p[i] = 99;
            _exit(same ? 10 + round : 1);
        }
        int status;
        waitpid(pid, &status, 0);
        printf("child %d unchanged %d\n", WEXITSTATUS(status), sum(p) == before);
    }
    return 0;
}
