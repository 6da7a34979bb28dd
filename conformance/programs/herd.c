// 1,500 processes alive at once. Each waits, then maps a file: half of them map one, half execute a program.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HERD = 1500 };

static int map(const char *file) {
    int fd = open(file, O_RDONLY);
    if (fd < 0) return 101;
    char *bytes = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) return 102;
    return memcmp(bytes, "\177ELF", 4) ? 103 : 11;
}

int main(void) {
    int release[2], ready[2];
    if (pipe(release) || pipe(ready)) { perror("pipe"); return 1; }
    int alive = 0;
    for (int i = 0; i < HERD; i++) {
        pid_t pid = fork();
        if (pid < 0) { perror("fork"); break; }
        if (pid == 0) {
            char byte = 0;
            close(release[1]);
            if (write(ready[1], &byte, 1) != 1 || read(release[0], &byte, 1) != 0) _exit(100);
            if (i % 2) _exit(map("/bin/sh"));
            execl("/bin/sh", "sh", "-c", "exit 13", (char *)NULL);
            _exit(104);
        }
        alive++;
    }
    for (int i = 0; i < alive; i++) {
        char byte;
        if (read(ready[0], &byte, 1) != 1) { perror("read"); return 1; }
    }
    printf("alive %d\n", alive);
    fflush(stdout);
    close(release[1]);
    int count[128] = {0}, status;
    while (wait(&status) > 0) count[WIFEXITED(status) ? WEXITSTATUS(status) & 127 : 127]++;
    for (int i = 0; i < 128; i++)
        if (count[i]) printf("%d ended with %d\n", count[i], i);
    return 0;
}
