/* An open loop of requests: they are sent at random times, whatever the server does.
 *
 * usage: openloop PORT RATE_PER_S SECONDS CONNECTIONS FILE < REQUEST
 *
 * The request is what stdin holds; an answer ends with "END\r\n". FILE gets two 64-bit integers a request: when it was due
 * (CLOCK_MONOTONIC, ns), and how long the answer took on the wire (ns): from the send to the kernel's receive timestamp, so
 * that this program's own waiting does not count. A request for which no connection is free counts from when it was due.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/net_tstamp.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 512

static int64_t now_ns(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

struct connection {
    int fd, busy;
    int64_t due_ns, sent_ns, first_ns;
    char tail[5];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int connected(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    int stamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to))
        fail("connect");
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof stamps) ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) || fcntl(fd, F_SETFL, O_NONBLOCK))
        fail("setsockopt");
    return fd;
}

/* Takes what has come; 1: the answer is complete. */
static int answered(struct connection *one)
{
    char data[65536], control[512];
    struct iovec into = {data, sizeof data};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(one->fd, &message, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        fail("the server closed the connection");
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_TIMESTAMPING && !one->first_ns) {
            struct timespec at;
            memcpy(&at, CMSG_DATA(part), sizeof at);
            one->first_ns = at.tv_sec * 1000000000LL + at.tv_nsec;
        }
    for (ssize_t n = got > 5 ? got - 5 : 0; n < got; n++) {
        memmove(one->tail, one->tail + 1, 4);
        one->tail[4] = data[n];
    }
    return !memcmp(one->tail, "END\r\n", 5);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    int port = atoi(argv[1]), count = atoi(argv[4]);
    double rate = atof(argv[2]), seconds = atof(argv[3]);
    FILE *out = fopen(argv[5], "wb");
    if (count < 1 || count > MOST || rate <= 0 || !out)
        return 2;
    char request[4096];
    size_t length = fread(request, 1, sizeof request, stdin);
    static struct connection all[MOST];
    int free_ones[MOST], free_count = 0, poll = epoll_create1(0);
    for (int n = 0; n < count; n++) {
        all[n].fd = connected(port);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = n};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[n].fd, &event))
            fail("epoll_ctl");
        free_ones[free_count++] = n;
    }
    prctl(PR_SET_TIMERSLACK, 1UL);
    srand48(1);
    int64_t began = now_ns(CLOCK_MONOTONIC), end = began + (int64_t)(seconds * 1e9), due = began, full = 0;
    for (;;) {
        int64_t now = now_ns(CLOCK_MONOTONIC);
        while (due <= now && due < end && free_count) {
            struct connection *one = &all[free_ones[--free_count]];
            one->due_ns = due;
            one->first_ns = 0;
            memset(one->tail, 0, sizeof one->tail);
            one->sent_ns = now_ns(CLOCK_REALTIME) - (due <= full ? now - due : 0);
            if (send(one->fd, request, length, MSG_NOSIGNAL) != (ssize_t)length)
                fail("send");
            due += (int64_t)(-log(1.0 - drand48()) / rate * 1e9);
        }
        if (due >= end && free_count == count)
            break;
        if (!free_count)
            full = now_ns(CLOCK_MONOTONIC);
        int64_t left = free_count && due < end ? due - now_ns(CLOCK_MONOTONIC) : 100000000LL;
        struct timespec wait = {left > 0 ? left / 1000000000LL : 0, left > 0 ? left % 1000000000LL : 0};
        struct epoll_event events[64];
        int ready = epoll_pwait2(poll, events, 64, &wait, NULL);
        if (!free_count)
            full = now_ns(CLOCK_MONOTONIC);
        for (int n = 0; n < ready; n++) {
            struct connection *one = &all[events[n].data.u32];
            if (!answered(one))
                continue;
            int64_t record[2] = {one->due_ns, one->first_ns - one->sent_ns};
            if (one->first_ns && fwrite(record, sizeof record, 1, out) != 1)
                fail("write");
            free_ones[free_count++] = events[n].data.u32;
        }
    }
    return fclose(out) ? 1 : 0;
}
