/* Packets in as they come, out as trains: from one capture to another, or from one interface to another (AF_PACKET).
 *
 *     trains IN.pcap OUT.pcap       in the time that the capture gives; OUT has release times
 *     trains IN OUT                 live, as root; SIGINT or SIGTERM ends it; VLAN tags, which the kernel takes off, are lost
 * Build it with:  cc -O2 trains.c $(pkg-config --cflags --libs slipstream) -o trains */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <slipstream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define SLOTS 20000 /* more than twice the reframer's capacity and a burst: there is always one free */
#define LONGEST 262144
static struct slot { uint8_t *data; uint32_t captured, length; } slots[SLOTS];
static uint32_t free_slots[SLOTS], n_free;
static FILE *in, *out;
static int rx, tx;
static unsigned long sent;
static volatile sig_atomic_t stop;

static void on_signal(int number) { stop = number; }
static void die(const char *what, const char *why)
{
    fprintf(stderr, "trains: %s: %s\n", what, why);
    exit(2);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_MONOTONIC, &t), t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Sends a packet or writes it with its release time, and frees its slot. */
static void send_packet(uint32_t handle, uint64_t release)
{
    struct slot *s = &slots[handle];
    uint32_t head[4] = {release / 1000000000, release % 1000000000, s->captured, s->length};
    if (!out) /* what an interface does not take is lost, as on a wire */
        sent += send(tx, s->data, s->captured, 0) >= 0;
    else if (fwrite(head, 16, 1, out) == 1 && fwrite(s->data, 1, s->captured, out) == s->captured)
        sent++;
    else
        die("writing", "is the disk full?");
    free_slots[n_free++] = handle;
}

static void poll_all(slip_reframe *r, uint64_t now)
{
    slip_train trains[64];
    uint32_t handles[SLIP_BURST];
    int n;
    while ((n = slip_reframe_poll(r, now, trains, 64, handles, SLIP_BURST)) > 0)
        for (int t = 0, at = 0; t < n; t++)
            for (uint32_t i = 0; i < trains[t].count; i++)
                send_packet(handles[at++], trains[t].release_ns);
    if (n < 0)
        die("poll", slip_reframe_error(r));
}

static void push(slip_reframe *r, uint64_t now, struct slot *s)
{
    slip_packet p = {s->data, NULL, s->captured, s->length, s - slots, 0};
    if (slip_reframe_push_burst(r, &p, 1, now) != SLIP_OK)
        die("push", slip_reframe_error(r));
}

/* A capture: the time is that of its packets, which never runs backwards here. */
static void replay(slip_reframe *r, uint64_t unit)
{
    uint64_t now = 0;
    for (uint32_t head[4] = {0}, got; (got = fread(head, 1, 16, in)) > 0;) {
        struct slot *s = &slots[free_slots[--n_free]];
        uint64_t time = head[0] * 1000000000ull + head[1] * unit;
        if (got < 16 || head[2] > LONGEST || fread(s->data, 1, head[2], in) != head[2])
            die("reading", "the capture is damaged or cut off");
        s->captured = head[2], s->length = head[3];
        now = time > now ? time : now;
        poll_all(r, now);
        push(r, now, s);
    }
    poll_all(r, SLIP_NEVER); /* time runs on until everything has left at its own deadline */
}

/* An interface: the time is the clock's, and the wait ends when a train is due. */
static void live(slip_reframe *r)
{
    while (!stop) {
        uint64_t now = now_ns(), due = slip_reframe_next_deadline(r), wait = due > now ? due - now : 0;
        struct timespec t = {due == SLIP_NEVER ? 1 : wait / 1000000000, wait % 1000000000};
        ppoll(&(struct pollfd){rx, POLLIN, 0}, 1, &t, NULL);
        poll_all(r, now = now_ns());
        for (ssize_t n = 0; n >= 0 && n_free > SLOTS / 2;) {
            struct slot *s = &slots[free_slots[--n_free]];
            if ((n = recv(rx, s->data, LONGEST, MSG_DONTWAIT)) < 0)
                n_free++;
            else
                s->captured = s->length = n, push(r, now, s);
        }
    }
    slip_reframe_drain(r);
    poll_all(r, now_ns());
}

static int packet_socket(const char *interface)
{
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
                                  .sll_ifindex = if_nametoindex(interface)};
    int on = 1, bytes = 16 << 20, fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    if (fd < 0 || !address.sll_ifindex || bind(fd, (void *)&address, sizeof address) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0)
        die(interface, "no such capture or interface, or it takes root to open it");
    return fd;
}

int main(int argc, char **argv)
{
    if (argc != 3 || !strcmp(argv[1], argv[2]))
        die("usage", "trains IN OUT, two captures or two interfaces");
    char why[256];
    slip_reframe *r = slip_reframe_new(NULL, why, sizeof why);
    for (; n_free < SLOTS && (slots[n_free].data = malloc(LONGEST)); n_free++) free_slots[n_free] = n_free;
    if (!r || n_free < SLOTS) die("settings", r ? "too little memory for packets" : why);
    if ((in = fopen(argv[1], "rb"))) {
        uint32_t head[6], ns = 0xa1b23c4d;
        if (fread(head, 24, 1, in) != 1 || (head[0] != 0xa1b2c3d4 && head[0] != ns) || head[5] != 1)
            die(argv[1], "no pcap file of Ethernet frames in the byte order of this machine");
        if (!(out = fopen(argv[2], "wb")) || fwrite(&ns, 4, 1, out) != 1 || fwrite(head + 1, 20, 1, out) != 1)
            die(argv[2], "can't be written");
        replay(r, head[0] == ns ? 1 : 1000);
        if (fclose(out)) die(argv[2], "can't be written");
    } else {
        rx = packet_socket(argv[1]), tx = packet_socket(argv[2]);
        signal(SIGINT, on_signal), signal(SIGTERM, on_signal);
        live(r);
    }
    slip_stats stats = {.size = sizeof stats};
    slip_reframe_stats(r, &stats);
    printf("%lu packets in, %lu out, %lu trains\n", stats.packets_in, sent, stats.trains);
    return slip_reframe_free(r);
}
