/* traffic MB_PER_S FOOTPRINT_KIB THREADS BUSY_PCT: work whose memory traffic and cache footprint a model of RDT believes.
 *
 * Each thread is busy for BUSY_PCT of the time. All that a real program does to a cache by what it does, this one declares
 * to the processor by CPUID leaves of the model, for the RMID that the thread runs under at that moment; so it declares it
 * again and again, since somebody may move its threads to another group.
 */
#include <cpuid.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { RATE_LEAF = 0x40005244, FOOTPRINT_LEAF = 0x40005245 };
static unsigned rate_mb_per_s, footprint_kib;
static double busy_share;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void *run(void *unused) {
    const double slice_s = 0.1;
    for (;;) {
        double began_s = now_s();
        unsigned a, b, c, d;
        __cpuid_count(RATE_LEAF, rate_mb_per_s, a, b, c, d);
        __cpuid_count(FOOTPRINT_LEAF, footprint_kib, a, b, c, d);
        while (now_s() - began_s < slice_s * busy_share)
            for (volatile int i = 0; i < 20000; i++) ;
        struct timespec rest = {0, (long)(slice_s * (1 - busy_share) * 1e9)};
        if (busy_share < 1)
            nanosleep(&rest, NULL);
    }
    return unused;
}

int main(int count, char **words) {
    if (count != 5)
        return 2;
    rate_mb_per_s = atoi(words[1]);
    footprint_kib = atoi(words[2]);
    busy_share = atoi(words[4]) / 100.0;
    pthread_t thread;
    for (int i = 1; i < atoi(words[3]); i++)
        pthread_create(&thread, NULL, run, NULL);
    run(NULL);
}
