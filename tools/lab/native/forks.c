/* Short-lived processes: a batch worker that does what make does, one compiler-like child after the other.
 *
 * usage: forks COUNTERS SLOT   every child touches 4 MiB, computes for some milliseconds and ends; the parent adds one to
 * slot SLOT of COUNTERS. It runs until it is killed, and dies with its parent.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOT_BYTES 64
#define SLOTS 1024
#define MEMORY (4 << 20)
#define ROUNDS 1500000

static void compile(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    volatile unsigned char *memory = malloc(MEMORY);
    if (!memory)
        _exit(1);
    for (size_t i = 0; i < MEMORY; i += 4096)
        memory[i] = 1;
    uint64_t state = 0x9E3779B97F4A7C15ull;
    for (int i = 0; i < ROUNDS; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memory[state % MEMORY]++;
    }
    _exit(0);
}

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
    for (;;) {
        int status;
        pid_t child = fork();
        if (child == 0)
            compile();
        if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
            return 5;
        *done += 1;
    }
}
