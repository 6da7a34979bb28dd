// Ends in the way that it is told, or prints its arguments.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    puts("before");
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "segv")) *(volatile int *)8 = 1;
    if (argc > 1 && !strcmp(argv[1], "abort")) abort();
    for (int i = 1; i < argc; i++) printf("[%s]\n", argv[i]);
    return argc;
}
