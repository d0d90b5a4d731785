/* Time in which a word that two threads write in turn goes round between cores 0 and 1, in ns: twice what a
 * cache line takes from one to the other. The host of a virtual machine may move its cores about. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 200000 };

static _Alignas(128) atomic_int word;

static void stay_on(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

static void wait_for(int value)
{
    while (atomic_load_explicit(&word, memory_order_acquire) != value) {
    }
}

static void *answer(void *unused)
{
    stay_on(1);
    for (int round = 0; round < ROUNDS; round++) {
        wait_for(2 * round + 1);
        atomic_store_explicit(&word, 2 * round + 2, memory_order_release);
    }
    return unused;
}

int main(void)
{
    pthread_t other;
    struct timespec since, until;
    stay_on(0);
    if (pthread_create(&other, NULL, answer, NULL) != 0)
        return 1;
    clock_gettime(CLOCK_MONOTONIC, &since);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store_explicit(&word, 2 * round + 1, memory_order_release);
        wait_for(2 * round + 2);
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    double ns = (until.tv_sec - since.tv_sec) * 1e9 + (until.tv_nsec - since.tv_nsec);
    printf("%.0f\n", ns / ROUNDS);
    return 0;
}
