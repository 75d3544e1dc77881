/* Monte-Carlo PI: a CPU-bound batch worker of constant work rate.
 *
 * usage: pi COUNTERS SLOT   adds the samples it has done to 64-bit slot SLOT (64 bytes apart) of the file COUNTERS.
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
#define ROUND 20000

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int slot = atoi(argv[2]);
    int fd = open(argv[1], O_RDWR);
    if (fd < 0 || slot < 0 || slot >= SLOTS)
        return 3;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *base = mmap(NULL, SLOT_BYTES * SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return 4;
    volatile uint64_t *done = (volatile uint64_t *)(base + SLOT_BYTES * slot);
    uint64_t state = 0x9E3779B97F4A7C15ull * (uint64_t)(slot + 1), inside = 0;
    for (;;) {
        for (int i = 0; i < ROUND; i++) {
            state ^= state << 13; /* xorshift64 */
            state ^= state >> 7;
            state ^= state << 17;
            double x = (double)(uint32_t)state * 0x1p-32, y = (double)(uint32_t)(state >> 32) * 0x1p-32;
            inside += x * x + y * y <= 1.0;
        }
        done[1] = inside; /* keeps the sum alive; pi = 4 * inside / done */
        *done += ROUND;
    }
}
