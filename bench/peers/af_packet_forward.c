/* A minimal forwarder over packet sockets: what comes in by one interface leaves by another, unchanged.
 *
 *     af_packet_forward IN OUT [NAP]
 *
 * It receives by a ring (TPACKET_V2, 4096 frames of 2 KiB), sends up to 64 frames a call (sendmmsg) from where they lie in
 * the ring, and sleeps in poll() when nothing is there, or for NAP us whether anything comes or not. With `-` for OUT it
 * sends nothing: what is left is what receiving costs. It ends at SIGINT. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { FRAME = 2048, FRAMES = 4096, BLOCK = 1 << 16, AT_ONCE = 64 };

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

static int bound(const char *name, int protocol)
{
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = (int)if_nametoindex(name)};
    if (fd < 0 || !address.sll_ifindex)
        return -1;
    if (protocol) {
        int version = TPACKET_V2, on = 1;
        struct tpacket_req ring = {BLOCK, FRAMES / (BLOCK / FRAME), FRAME, FRAMES};
        struct packet_mreq all = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
        if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) ||
            setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) ||
            setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) ||
            setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all))
            return -1;
    } else {
        int room = 4 << 20;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    }
    return bind(fd, (struct sockaddr *)&address, sizeof address) ? -1 : fd;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4)
        return 2;
    struct timespec nap = {0, argc == 4 ? atol(argv[3]) * 1000 : 0};
    int sends = strcmp(argv[2], "-") != 0;
    prctl(PR_SET_TIMERSLACK, 1);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    int in = bound(argv[1], ETH_P_ALL), out = sends ? bound(argv[2], 0) : 0;
    uint8_t *ring = mmap(NULL, (size_t)FRAME * FRAMES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, in, 0);
    if (in < 0 || out < 0 || ring == MAP_FAILED) {
        perror("af_packet_forward");
        return 2;
    }
    struct iovec parts[AT_ONCE];
    struct mmsghdr messages[AT_ONCE];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < AT_ONCE; i++) {
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    unsigned at = 0;
    uint64_t packets = 0;
    while (!stop) {
        int n = 0;
        for (; n < AT_ONCE; n++) {
            struct tpacket2_hdr *head = (void *)(ring + (size_t)((at + n) % FRAMES) * FRAME);
            if (!(__atomic_load_n(&head->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
                break;
            parts[n].iov_base = (uint8_t *)head + head->tp_mac;
            parts[n].iov_len = head->tp_snaplen;
        }
        if (!n) {
            struct pollfd wait = {.fd = in, .events = POLLIN};
            if (nap.tv_nsec)
                nanosleep(&nap, NULL);
            else
                poll(&wait, 1, -1);
            continue;
        }
        for (int done = sends ? 0 : n; done < n;) {
            int sent = sendmmsg(out, messages + done, (unsigned)(n - done), MSG_DONTWAIT);
            done += sent > 0 ? sent : 1;
        }
        for (int i = 0; i < n; i++, at = (at + 1) % FRAMES) {
            struct tpacket2_hdr *head = (void *)(ring + (size_t)at * FRAME);
            __atomic_store_n(&head->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        }
        packets += (uint64_t)n;
    }
    printf("%llu\n", (unsigned long long)packets);
    return 0;
}
