/* Wake-up latency, as cyclictest measures it: how late a thread that sleeps until a time runs again.
 *
 * usage: wakeup INTERVAL_US COUNT   prints the latency of every wake-up in nanoseconds, one a line.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    long interval_ns = 1000 * atol(argv[1]), count = atol(argv[2]);
    if (interval_ns <= 0 || count <= 0)
        return 2;
    long *late_ns = malloc(sizeof(long) * count);
    struct timespec next, now;
    prctl(PR_SET_TIMERSLACK, 1UL); /* the kernel may not put the timer off, as it may not for real-time threads */
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (long i = 0; i < count; i++) {
        next.tv_nsec += interval_ns;
        while (next.tv_nsec >= 1000000000L) {
            next.tv_nsec -= 1000000000L;
            next.tv_sec++;
        }
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) == EINTR)
            ;
        clock_gettime(CLOCK_MONOTONIC, &now);
        late_ns[i] = 1000000000L * (now.tv_sec - next.tv_sec) + now.tv_nsec - next.tv_nsec;
        if (late_ns[i] > interval_ns)
            next = now; /* missed wake-ups are not made up for in a burst */
    }
    for (long i = 0; i < count; i++)
        printf("%ld\n", late_ns[i]);
    return 0;
}
