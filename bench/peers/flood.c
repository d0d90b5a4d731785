/* Sends UDP frames of 60 bytes of many flows in turn by a packet socket, at a set rate, for a set time:
 *
 *     flood INTERFACE DESTINATION-MAC PPS SECONDS FLOWS [AT_A_TIME [stamped]]
 *
 * Up to 32 leave at a time, all in one system call, and it sleeps in between; fewer are waited for awake.
 * With `stamped`, each frame has its number and the time at which it leaves (ns since 1970) behind the UDP
 * header, eight bytes each in network order, and the sender sleeps in between however few they are. Prints
 * how many left. What the interface has no room for is tried again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { LENGTH = 60, AT_ONCE = 32, STAMP = 42 };

static uint16_t ip_checksum(const uint8_t *header)
{
    uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2)
        sum += (uint32_t)header[i] << 8 | header[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~((sum & 0xffff) + (sum >> 16));
}

static void make(uint8_t *frame, const uint8_t *to, unsigned flow)
{
    static const uint8_t ip[20] = {0x45, 0, 0, LENGTH - 14, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2};
    memset(frame, 0, LENGTH);
    memcpy(frame, to, 6);
    frame[6] = 2;
    frame[11] = 1;
    frame[12] = 8;
    memcpy(frame + 14, ip, 20);
    uint16_t sum = ip_checksum(frame + 14);
    frame[24] = sum >> 8;
    frame[25] = sum & 0xff;
    unsigned port = 40000 + flow;
    frame[34] = port >> 8;
    frame[35] = port & 0xff;
    frame[37] = 9;
    frame[39] = LENGTH - 34;
}

static void put(uint8_t *to, uint64_t number)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(number >> (56 - 8 * i));
}

static uint64_t since_1970(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void wait_awake(const struct timespec *until)
{
    struct timespec now;
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec < until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec < until->tv_nsec));
}

int main(int argc, char **argv)
{
    int at_a_time = argc >= 7 ? atoi(argv[6]) : AT_ONCE, stamped = argc == 8 && !strcmp(argv[7], "stamped");
    if (argc < 6 || argc > 7 + stamped || at_a_time < 1 || at_a_time > AT_ONCE) {
        fprintf(stderr, "usage: flood INTERFACE DESTINATION-MAC PPS SECONDS FLOWS [AT_A_TIME [stamped]]\n");
        return 2;
    }
    uint8_t to[6];
    if (sscanf(argv[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", to, to + 1, to + 2, to + 3, to + 4, to + 5) != 6)
        return 2;
    double pps = atof(argv[3]), seconds = atof(argv[4]);
    unsigned flows = (unsigned)atoi(argv[5]);
    uint8_t *frames = malloc((size_t)flows * LENGTH);
    for (unsigned flow = 0; flow < flows; flow++)
        make(frames + (size_t)flow * LENGTH, to, flow);
    static uint8_t numbered[AT_ONCE][LENGTH];
    /* Sleeps end when they are due, not up to 50 µs later. */
    if (stamped)
        prctl(PR_SET_TIMERSLACK, 1);

    int fd = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(argv[1])};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address)) {
        perror("flood");
        return 2;
    }
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);

    struct iovec parts[AT_ONCE];
    struct mmsghdr messages[AT_ONCE];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < AT_ONCE; i++) {
        parts[i].iov_len = LENGTH;
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    uint64_t all = (uint64_t)(pps * seconds), sent = 0;
    uint64_t gap = (uint64_t)(1e9 * at_a_time / pps);
    unsigned flow = 0;
    while (sent < all) {
        for (int i = 0; i < at_a_time; i++, flow = (flow + 1) % flows)
            parts[i].iov_base = frames + (size_t)flow * LENGTH;
        for (int i = 0; stamped && i < at_a_time; i++) {
            parts[i].iov_base = memcpy(numbered[i], parts[i].iov_base, LENGTH);
            put(numbered[i] + STAMP, sent + (uint64_t)i);
            put(numbered[i] + STAMP + 8, since_1970());
        }
        for (int done = 0; done < at_a_time;) {
            int n = sendmmsg(fd, messages + done, (unsigned)(at_a_time - done), 0);
            if (n > 0)
                done += n;
            else if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR) {
                perror("flood");
                return 2;
            }
        }
        sent += (uint64_t)at_a_time;
        uint64_t at = (uint64_t)next.tv_nsec + gap;
        next.tv_sec += (time_t)(at / 1000000000);
        next.tv_nsec = (long)(at % 1000000000);
        if (at_a_time == AT_ONCE || stamped)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        else
            wait_awake(&next);
    }
    printf("%llu\n", (unsigned long long)sent);
    return 0;
}
