# needs: gcc
cat >a.c <<'END'
#include <math.h>
#include <pthread.h>
#include <stdio.h>
static void *work(void *p) { *(double *)p = sqrt(*(double *)p); return 0; }
int main(void) {
    pthread_t t[8]; double v[8];
    for (int i = 0; i < 8; i++) { v[i] = i * i; pthread_create(&t[i], 0, work, &v[i]); }
    for (int i = 0; i < 8; i++) { pthread_join(t[i], 0); printf("%g ", v[i]); }
    puts(__VERSION__);
    return 0;
}
END
gcc -O2 -g -flto -pthread -o a a.c -lm && ./a
gcc -O2 -static -pthread -o s a.c -lm && ./s
echo 'int f(void) { return g(); }' >b.c
gcc -Werror -c b.c 2>&1 | grep -c error
gcc -c -fPIC -x c - -o lib.o <<<'int answer(void) { return 42; }' && gcc -shared -o libanswer.so lib.o
gcc -x c - -o d -L. -lanswer -Wl,-rpath,'$ORIGIN' <<<'int answer(void); int main(void) { return answer(); }'
./d || echo $?
ar rc libx.a lib.o && nm libx.a && objdump -d lib.o | tail -3 && size lib.o && strip a && ./a
