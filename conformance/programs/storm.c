// 100,000 signals, from threads to each other and from timers: none is lost. With an argument, so many times fewer.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, ALL_KILLS = 15000, ALL_TIMERS = 10000 };
static int kills = ALL_KILLS, timers = ALL_TIMERS;
static int tids[THREADS];
static volatile long got_kill[THREADS], got_timer[THREADS], sum[THREADS];
static __thread int self;
static pthread_barrier_t barrier;

static void on_kill(int s, siginfo_t *info, void *c) { (void)s; (void)c; got_kill[self]++; sum[self] += info->si_value.sival_int; }
static void on_timer(int s, siginfo_t *info, void *c) { (void)s; (void)c; got_timer[self] += 1 + info->si_overrun; }

static long total(volatile long *v) { long t = 0; for (int i = 0; i < THREADS; i++) t += v[i]; return t; }

static void *work(void *arg) {
    self = (int)(long)arg;
    tids[self] = syscall(SYS_gettid);
    pthread_barrier_wait(&barrier);
    unsigned seed = self;
    for (int i = 0; i < kills; i++) {
        siginfo_t info = { .si_code = SI_QUEUE };
        info.si_value.sival_int = i;
        int to = rand_r(&seed) % THREADS;
        while (syscall(SYS_rt_tgsigqueueinfo, getpid(), tids[to], SIGRTMIN + 1, &info)) {
            if (errno != EAGAIN) { perror("rt_tgsigqueueinfo"); exit(1); }
            sched_yield();
        }
    }
    struct sigevent e = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 2 };
    e._sigev_un._tid = tids[self];
    timer_t t;
    if (timer_create(CLOCK_MONOTONIC, &e, &t)) { perror("timer_create"); exit(1); }
    sigset_t block, old;
    sigemptyset(&block);
    sigaddset(&block, SIGRTMIN + 2);
    for (int i = 0; i < timers; i++) {
        struct itimerspec when = { .it_value.tv_nsec = 1 + rand_r(&seed) % 20000 };
        long before = got_timer[self];
        if (timer_settime(t, 0, &when, NULL)) { perror("timer_settime"); exit(1); }
        if (i % 2) {
            while (got_timer[self] == before) ;
        } else {
            pthread_sigmask(SIG_BLOCK, &block, &old);
            while (got_timer[self] == before) sigsuspend(&old);
            pthread_sigmask(SIG_SETMASK, &old, NULL);
        }
    }
    // Every thread stays until all have been delivered.
    while (total(got_kill) < THREADS * kills) usleep(1000);
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1) kills /= atoi(argv[1]), timers /= atoi(argv[1]);
    alarm(1800);
    struct sigaction a = { .sa_sigaction = on_kill, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGRTMIN + 1, &a, NULL);
    a.sa_sigaction = on_timer;
    sigaction(SIGRTMIN + 2, &a, NULL);
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t t[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    printf("kills %ld sum %ld timers %ld\n", total(got_kill), total(sum), total(got_timer));
    return 0;
}
