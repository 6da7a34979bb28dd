// vfork and posix_spawn, with file actions, attributes and failures.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 1) { printf("child %s\n", argv[1]); return atoi(argv[1]); }
    int status, total = 0;
    for (int i = 0; i < 50; i++) {
        volatile int seen = 0;
        pid_t pid = vfork();
        if (pid == 0) {
            seen = i;
            if (i % 2) _exit(i);
            execl(argv[0], argv[0], "3", NULL);
            _exit(99);
        }
        waitpid(pid, &status, 0);
        total += WEXITSTATUS(status) + seen;
    }
    printf("vfork total %d\n", total);
    pid_t pid = vfork();
    if (pid == 0) { execl("/does/not/exist", "x", NULL); _exit(errno); }
    waitpid(pid, &status, 0);
    printf("failed exec %d\n", WEXITSTATUS(status));

    int p[2];
    if (pipe(p)) return 1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, p[1], 1);
    posix_spawn_file_actions_addclose(&actions, p[0]);
    posix_spawnattr_t attr;
    posix_spawnattr_init(&attr);
    sigset_t mask;
    sigemptyset(&mask);
    posix_spawnattr_setsigmask(&attr, &mask);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    char *args[] = { argv[0], "42", NULL };
    for (int i = 0; i < 20; i++) {
        if ((errno = posix_spawn(&pid, argv[0], &actions, &attr, args, environ))) { perror("posix_spawn"); return 1; }
        waitpid(pid, &status, 0);
        char buf[64];
        ssize_t n = read(p[0], buf, sizeof buf);
        if (n != 9 || memcmp(buf, "child 42\n", 9) || WEXITSTATUS(status) != 42) { printf("round %d wrong\n", i); return 1; }
    }
    printf("missing: %s\n", strerror(posix_spawn(&pid, "/does/not/exist", NULL, NULL, args, environ)));
    FILE *f = popen("echo from a shell; exit 4", "r");
    char line[64] = "";
    if (!fgets(line, sizeof line, f)) return 1;
    status = pclose(f);
    printf("popen %s status %d\n", strtok(line, "\n"), WEXITSTATUS(status));
    printf("system %d\n", WEXITSTATUS(system("exit 7")));
    return 0;
}
