/* Memory streaming: a batch worker that is bound by memory bandwidth (triad over arrays larger than the last cache).
 *
 * usage: stream COUNTERS SLOT MIB   three arrays of MIB MiB each; adds the bytes it has moved to slot SLOT of COUNTERS.
 * It runs until it is killed, and dies with its parent.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SLOT_BYTES 64
#define SLOTS 1024
#define BLOCK 65536 /* doubles between two reports */

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int slot = atoi(argv[2]);
    size_t count = (size_t)atoi(argv[3]) * (1024 * 1024 / sizeof(double));
    int fd = open(argv[1], O_RDWR);
    if (fd < 0 || slot < 0 || slot >= SLOTS || count < BLOCK)
        return 3;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *base = mmap(NULL, SLOT_BYTES * SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    double *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b), *c = malloc(count * sizeof *c);
    if (base == MAP_FAILED || !a || !b || !c)
        return 4;
    for (size_t i = 0; i < count; i++) {
        a[i] = 0.0;
        b[i] = 1.0;
        c[i] = 2.0;
    }
    volatile uint64_t *done = (volatile uint64_t *)(base + SLOT_BYTES * slot);
    for (double scale = 3.0;; scale += 0.5)
        for (size_t start = 0; start + BLOCK <= count; start += BLOCK) {
            for (size_t i = start; i < start + BLOCK; i++)
                a[i] = b[i] + scale * c[i];
            __asm__ volatile("" ::: "memory"); /* the stores must happen */
            *done += 3 * BLOCK * sizeof(double);
        }
}
