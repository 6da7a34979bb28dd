// 64 threads with mutexes, condition variables, barriers, read-write locks, cancellation and thread-local data.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 64, ROUNDS = 2000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static long counter, once_runs, cleaned, destroyed, whose_turn, reads, writes;
static __thread long mine = 7;
static pthread_key_t key;

static void init(void) { once_runs++; }
static void destroy(void *p) { __sync_fetch_and_add(&destroyed, (long)p); }
static void cleanup(void *p) { (void)p; __sync_fetch_and_add(&cleaned, 1); }

static void unlock(void *m) { pthread_mutex_unlock(m); }
static void *nothing(void *arg) { return arg; }

static void *work(void *arg) {
    long id = (long)arg;
    pthread_once(&once, init);
    pthread_setspecific(key, (void *)1);
    mine += id;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&lock);
        counter++;
        pthread_mutex_unlock(&lock);
    }
    for (int i = 0; i < 50; i++) {
        if (i % 10 == 0) {
            pthread_rwlock_wrlock(&table);
            writes++;
            pthread_rwlock_unlock(&table);
        } else {
            pthread_rwlock_rdlock(&table);
            __sync_fetch_and_add(&reads, 1);
            pthread_rwlock_unlock(&table);
        }
    }
    // One after the other, in order.
    pthread_mutex_lock(&lock);
    while (whose_turn != id) pthread_cond_wait(&turn, &lock);
    whose_turn++;
    pthread_cond_broadcast(&turn);
    pthread_mutex_unlock(&lock);
    pthread_barrier_wait(&barrier);
    return (void *)(mine - 7);
}

static void *wait_for_ever(void *arg) {
    pthread_cleanup_push(cleanup, NULL);
    if (arg) {
        static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
        static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
        pthread_mutex_lock(&m);
        pthread_cleanup_push(unlock, &m);
        for (;;) pthread_cond_wait(&c, &m);
        pthread_cleanup_pop(0);
    } else {
        for (;;) sleep(1000);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    pthread_t t[THREADS];
    pthread_key_create(&key, destroy);
    pthread_barrier_init(&barrier, NULL, THREADS);
    long sum = 0;
    for (long i = 0; i < THREADS; i++) if (pthread_create(&t[i], NULL, work, (void *)i)) { perror("create"); return 1; }
    for (int i = 0; i < THREADS; i++) { void *r; pthread_join(t[i], &r); sum += (long)r; }
    printf("counter %ld once %ld sum %ld turns %ld reads %ld writes %ld destroyed %ld mine %ld\n", counter, once_runs, sum,
           whose_turn, reads, writes, destroyed, mine);
    long cancelled = 0;
    for (long i = 0; i < 16; i++) pthread_create(&t[i], NULL, wait_for_ever, (void *)(i % 2));
    usleep(20000);
    for (int i = 0; i < 16; i++) pthread_cancel(t[i]);
    for (int i = 0; i < 16; i++) { void *r; pthread_join(t[i], &r); cancelled += r == PTHREAD_CANCELED; }
    printf("cancelled %ld cleaned %ld\n", cancelled, cleaned);
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_nsec += 20000000;
    if (ts.tv_nsec >= 1000000000) ts.tv_sec++, ts.tv_nsec -= 1000000000;
    pthread_mutex_lock(&lock);
    printf("timed out %d\n", pthread_cond_timedwait(&turn, &lock, &ts) == 110);
    pthread_mutex_unlock(&lock);
    for (int round = 0; round < 20; round++) {
        for (long i = 0; i < 16; i++) pthread_create(&t[i], NULL, nothing, NULL);
        for (int i = 0; i < 16; i++) pthread_join(t[i], NULL);
    }
    puts("done");
    return 0;
}
