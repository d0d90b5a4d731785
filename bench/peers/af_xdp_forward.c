/* A minimal forwarder over AF_XDP sockets: what comes in by one interface leaves by another, unchanged and from where it
 * lies. System calls only, no library.
 *
 *     af_xdp_forward IN OUT
 *
 * Queue 0 of both, native mode where the driver has it, the kernel's choice of copying, need-wakeup, rings of 2048, 64
 * packets at once, poll() when nothing is there. It ends at SIGINT. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNK = 2048, CHUNKS = 16384, RING = 2048, AT_ONCE = 64 };

struct ring {
    uint32_t *producer, *consumer, *flags;
    void *entries;
    uint32_t mine;
};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

static void fail(const char *what)
{
    fprintf(stderr, "af_xdp_forward: %s: %s\n", what, strerror(errno));
    exit(2);
}

static struct ring map_ring(int fd, int option, off_t offset, const struct xdp_ring_offset *at, size_t entry)
{
    int size = RING;
    if (setsockopt(fd, SOL_XDP, option, &size, sizeof size))
        fail("ring");
    uint8_t *memory = mmap(NULL, at->desc + RING * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    if (memory == MAP_FAILED)
        fail("mmap");
    struct ring ring = {(void *)(memory + at->producer), (void *)(memory + at->consumer), (void *)(memory + at->flags),
                        memory + at->desc, 0};
    return ring;
}

static struct xdp_mmap_offsets offsets(int fd)
{
    struct xdp_mmap_offsets all;
    socklen_t length = sizeof all;
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &all, &length))
        fail("offsets");
    return all;
}

static void bind_to(int fd, const char *name)
{
    struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP, .sxdp_ifindex = if_nametoindex(name), .sxdp_flags = XDP_USE_NEED_WAKEUP};
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        fail("bind");
}

static int bpf(int command, union bpf_attr *attr)
{
    return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

static void attach(const char *name, int socket)
{
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1};
    int sockets = bpf(BPF_MAP_CREATE, &map);
    uint32_t key = 0;
    union bpf_attr put = {.map_fd = (uint32_t)sockets, .key = (uintptr_t)&key, .value = (uintptr_t)&socket};
    if (sockets < 0 || bpf(BPF_MAP_UPDATE_ELEM, &put))
        fail("map");
    struct bpf_insn code[] = {
        {BPF_LDX | BPF_MEM | BPF_W, 2, 1, 16, 0}, {BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, sockets},
        {0, 0, 0, 0, 0},                          {BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS},
        {BPF_JMP | BPF_CALL, 0, 0, 0, 51},        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    };
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code,
                           .insn_cnt = sizeof code / sizeof *code, .license = (uintptr_t) "Apache-2.0"};
    int program = bpf(BPF_PROG_LOAD, &load);
    if (program < 0)
        fail("program");
    union bpf_attr link = {.link_create = {.prog_fd = (uint32_t)program, .target_ifindex = if_nametoindex(name),
                                           .attach_type = BPF_XDP, .flags = 1U << 2}};
    if (bpf(BPF_LINK_CREATE, &link) < 0) {
        link.link_create.flags = 1U << 1;
        if (bpf(BPF_LINK_CREATE, &link) < 0)
            fail("link");
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    size_t bytes = (size_t)CHUNK * CHUNKS;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct xdp_umem_reg umem = {.addr = (uintptr_t)memory, .len = bytes, .chunk_size = CHUNK};
    int in = socket(AF_XDP, SOCK_RAW, 0), out = socket(AF_XDP, SOCK_RAW, 0);
    if (memory == MAP_FAILED || in < 0 || out < 0 || setsockopt(in, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem) ||
        setsockopt(out, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem))
        fail("memory");
    int room = 16 << 20, at_once = RING;
    setsockopt(out, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    setsockopt(out, SOL_XDP, 9 /* XDP_MAX_TX_SKB_BUDGET */, &at_once, sizeof at_once);
    struct xdp_mmap_offsets at = offsets(in);
    struct ring fill = map_ring(in, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &at.fr, 8);
    map_ring(in, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, 8);
    struct ring receive = map_ring(in, XDP_RX_RING, XDP_PGOFF_RX_RING, &at.rx, sizeof(struct xdp_desc));
    map_ring(out, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &at.fr, 8);
    struct ring done = map_ring(out, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, 8);
    struct ring transmit = map_ring(out, XDP_TX_RING, XDP_PGOFF_TX_RING, &at.tx, sizeof(struct xdp_desc));
    bind_to(in, argv[1]);
    bind_to(out, argv[2]);
    for (; fill.mine < RING; fill.mine++)
        ((uint64_t *)fill.entries)[fill.mine % RING] = (uint64_t)fill.mine * CHUNK;
    __atomic_store_n(fill.producer, fill.mine, __ATOMIC_RELEASE);
    attach(argv[1], in);

    uint64_t packets = 0;
    while (!stop) {
        /* Buffers of packets that have left wait for packets to come. */
        uint32_t left = __atomic_load_n(done.producer, __ATOMIC_ACQUIRE) - done.mine;
        for (uint32_t i = 0; i < left; i++, done.mine++, fill.mine++)
            ((uint64_t *)fill.entries)[fill.mine % RING] =
                ((uint64_t *)done.entries)[done.mine % RING] & ~(uint64_t)(CHUNK - 1);
        if (left) {
            __atomic_store_n(done.consumer, done.mine, __ATOMIC_RELEASE);
            __atomic_store_n(fill.producer, fill.mine, __ATOMIC_RELEASE);
        }
        uint32_t n = __atomic_load_n(receive.producer, __ATOMIC_ACQUIRE) - receive.mine;
        if (n > AT_ONCE)
            n = AT_ONCE;
        if (!n) {
            struct pollfd wait = {.fd = in, .events = POLLIN};
            poll(&wait, 1, 10);
            continue;
        }
        for (uint32_t i = 0; i < n; i++, receive.mine++, transmit.mine++)
            ((struct xdp_desc *)transmit.entries)[transmit.mine % RING] =
                ((struct xdp_desc *)receive.entries)[receive.mine % RING];
        __atomic_store_n(receive.consumer, receive.mine, __ATOMIC_RELEASE);
        __atomic_store_n(transmit.producer, transmit.mine, __ATOMIC_RELEASE);
        while (*(volatile uint32_t *)transmit.flags & XDP_RING_NEED_WAKEUP &&
               __atomic_load_n(transmit.consumer, __ATOMIC_ACQUIRE) != transmit.mine)
            if (sendto(out, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != EINTR)
                break;
        packets += n;
    }
    printf("%llu\n", (unsigned long long)packets);
    return 0;
}
