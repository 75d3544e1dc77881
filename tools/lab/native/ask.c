/* Requests to a server on loopback, in a closed or an open loop, over many connections of one thread.
 *
 * usage: ask PROTOCOL PORT CONNECTIONS RATE
 *   PROTOCOL: redis (a tenth writes, a tenth ranges of 100 of a sorted set, else reads), memcached (a tenth writes, else
 *   reads of 16 keys at once) or http (GET /page/N). RATE 0: each connection asks again when it is answered. Otherwise
 *   RATE requests a second arrive by a Poisson process, and latency counts from a request's arrival.
 *
 * First fills the keys, where the protocol has any. Then prints every second, until it is killed: time, interval,
 * events, errors, and the cumulative histogram of latencies in ms, as sysbench prints it. Dies with its parent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEYS 20000
#define VALUE 100
#define BUCKETS 930
#define WAITING (1 << 20)
#define IN (1 << 18)

struct connection {
    int fd, busy;
    size_t used, sent, length;
    double since;
    char in[IN], out[8192];
};

static double waiting[WAITING]; /* arrivals that no connection is free for */
static unsigned long first_waiting, last_waiting;
static unsigned long counts[BUCKETS], events, errors;
static double bounds_ms[BUCKETS];
static const char *protocol;
static char value[VALUE + 1];
static uint64_t state = 0x9E3779B97F4A7C15ull;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static uint32_t any(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 33) % below;
}

static void give_up(const char *what)
{
    fprintf(stdout, "ask: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The next request, as bytes. */
static size_t compose(char *out)
{
    uint32_t key = any(KEYS), kind = any(10);
    if (!strcmp(protocol, "redis")) {
        if (kind == 0)
            return sprintf(out, "SET key:%u %s\r\n", key, value);
        if (kind == 1)
            return sprintf(out, "ZREVRANGE board %u %u WITHSCORES\r\n", key % 900, key % 900 + 99);
        return sprintf(out, "GET key:%u\r\n", key);
    }
    if (!strcmp(protocol, "memcached")) {
        if (kind == 0)
            return sprintf(out, "set key:%u 0 0 %d\r\n%s\r\n", key, VALUE, value);
        size_t length = sprintf(out, "get");
        for (int i = 0; i < 16; i++)
            length += sprintf(out + length, " key:%u", any(KEYS));
        return length + sprintf(out + length, "\r\n");
    }
    return sprintf(out, "GET /page/%u HTTP/1.1\r\nHost: localhost\r\n\r\n", key);
}

static char *line_end(char *from, char *end)
{
    char *found = from < end ? memmem(from, end - from, "\r\n", 2) : NULL;
    return found ? found + 2 : NULL;
}

/* Where a whole Redis value ends; NULL while it is not there. */
static char *redis_value(char *at, char *end)
{
    char *next = line_end(at, end);
    if (!next)
        return NULL;
    long count = atol(at + 1);
    if (*at == '$')
        return count < 0 ? next : (end - next >= count + 2 ? next + count + 2 : NULL);
    if (*at == '*')
        while (next && count-- > 0)
            next = redis_value(next, end);
    if (*at == '-')
        errors++;
    return next;
}

/* 1 when the answer is complete. */
static int answered(struct connection *c)
{
    char *end = c->in + c->used;
    c->in[c->used] = 0;
    if (!strcmp(protocol, "redis"))
        return redis_value(c->in, end) != NULL;
    if (!strcmp(protocol, "memcached")) {
        if (c->used >= 5 && !memcmp(end - 5, "END\r\n", 5))
            return 1;
        return c->in[0] == 'S' && line_end(c->in, end) != NULL; /* STORED, SERVER_ERROR */
    }
    char *body = memmem(c->in, c->used, "\r\n\r\n", 4), *length = strcasestr(c->in, "Content-Length:");
    if (!body || !length)
        return 0;
    if (strncmp(c->in, "HTTP/1.1 200", 12))
        errors++;
    return end - (body + 4) >= atol(length + 15);
}

static void flush_out(struct connection *c)
{
    while (c->sent < c->length) {
        ssize_t done = write(c->fd, c->out + c->sent, c->length - c->sent);
        if (done < 0) {
            if (errno == EAGAIN)
                return; /* requests are small: the answer to the last one made room */
            give_up("write");
        }
        c->sent += done;
    }
}

static void ask(struct connection *c, double since)
{
    c->busy = 1;
    c->since = since;
    c->used = c->sent = 0;
    c->length = compose(c->out);
    flush_out(c);
}

static void count(double seconds)
{
    double ms = seconds * 1e3;
    int bucket = ms <= bounds_ms[0] ? 0 : (int)ceil(log(ms / bounds_ms[0]) / log(1.02) - 1e-9);
    counts[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    events++;
}

static int dial(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to))
        give_up("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Send text and read until as many line ends came as were asked for. */
static void tell(int fd, const char *text, long lines)
{
    char in[65536];
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        give_up("write");
    while (lines > 0) {
        ssize_t got = read(fd, in, sizeof in);
        if (got <= 0)
            give_up("read");
        for (ssize_t i = 0; i < got; i++)
            lines -= in[i] == '\n';
    }
}

static void fill(int port)
{
    char text[64 * 256];
    if (!strcmp(protocol, "http"))
        return;
    int fd = dial(port), lines = 0;
    size_t length = 0;
    for (int key = 0; key < KEYS; key++) {
        if (!strcmp(protocol, "redis"))
            length += sprintf(text + length, "SET key:%d %s\r\nZADD board %d player:%d\r\n", key, value,
                              7919 * key % 1009, key % 1000);
        else
            length += sprintf(text + length, "set key:%d 0 0 %d\r\n%s\r\n", key, VALUE, value);
        lines += strcmp(protocol, "redis") ? 1 : 2;
        if (key % 64 == 63 || key == KEYS - 1) {
            tell(fd, text, lines);
            length = lines = 0;
        }
    }
    close(fd);
}

static void report(double elapsed_s, double interval_s)
{
    static unsigned long before, errors_before;
    printf("second %.3f interval %.6f events %lu errors %lu\n", elapsed_s, interval_s, events - before,
           errors - errors_before);
    for (int i = 0; i < BUCKETS; i++)
        if (counts[i])
            printf("%.6f | %lu\n", bounds_ms[i], counts[i]);
    puts("end");
    fflush(stdout);
    before = events;
    errors_before = errors;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    protocol = argv[1];
    int port = atoi(argv[2]), connections = atoi(argv[3]);
    double rate = atof(argv[4]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1UL);
    memset(value, 'x', VALUE);
    for (int i = 0; i < BUCKETS; i++)
        bounds_ms[i] = 0.001 * pow(1.02, i);
    fill(port);
    struct connection *all = calloc(connections, sizeof *all);
    struct epoll_event *ready = calloc(connections, sizeof *ready);
    int *free_ones = calloc(connections, sizeof *free_ones), free_count = 0, poll_fd = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        all[i].fd = dial(port);
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, all[i].fd, &event))
            give_up("epoll_ctl");
        free_ones[free_count++] = i;
    }
    double began = now_s(), last = began, arrival = began;
    for (;;) {
        double now = now_s();
        if (now - last >= 1.0) {
            report(now - began, now - last);
            last = now;
        }
        while (rate > 0 && arrival <= now) {
            if (last_waiting - first_waiting < WAITING)
                waiting[last_waiting++ % WAITING] = arrival;
            else
                errors++;
            arrival += -log((any(1u << 30) + 1.0) / (1u << 30)) / rate;
        }
        while (free_count > 0 && (rate == 0 || first_waiting < last_waiting)) {
            struct connection *c = &all[free_ones[--free_count]];
            ask(c, rate > 0 ? waiting[first_waiting++ % WAITING] : now_s());
        }
        double until = last + 1.0;
        if (rate > 0 && arrival < until)
            until = arrival;
        double left = until - now_s();
        struct timespec wait = {0, left > 0 ? (long)(fmin(left, 0.999) * 1e9) : 0};
        int count_ready = epoll_pwait2(poll_fd, ready, connections, &wait, NULL);
        if (count_ready < 0 && errno != EINTR)
            give_up("epoll_pwait2");
        for (int n = 0; n < count_ready; n++) {
            struct connection *c = &all[ready[n].data.u32];
            ssize_t got = recv(c->fd, c->in + c->used, IN - 1 - c->used, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN)
                continue;
            if (got <= 0)
                give_up("the server closed a connection");
            c->used += got;
            if (!c->busy || !answered(c))
                continue;
            count(now_s() - c->since);
            c->busy = 0;
            free_ones[free_count++] = ready[n].data.u32;
        }
    }
}
