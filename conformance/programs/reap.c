// 1,000 processes forked and reaped, then 100 alive at once.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    long total = 0;
    for (int i = 0; i < 1000; i++) {
        pid_t pid = fork();
        if (pid < 0) { perror("fork"); return 1; }
        if (pid == 0) _exit(i % 7);
        int status;
        if (waitpid(pid, &status, 0) != pid) { perror("waitpid"); return 1; }
        total += WEXITSTATUS(status);
    }
    printf("total %ld\n", total);
    int p[2];
    if (pipe(p)) return 1;
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid < 0) { perror("fork"); return 1; }
        if (pid == 0) { close(p[1]); char c; _exit(read(p[0], &c, 1) == 0 ? 1 : 0); }
    }
    close(p[1]);
    int n = 0, status;
    total = 0;
    while (wait(&status) > 0) n++, total += WEXITSTATUS(status);
    printf("reaped %d ends of file %ld\n", n, total);
    return 0;
}
