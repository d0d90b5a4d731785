/* DPDK's l2fwd with trains: what port 0 receives leaves by port 1, packets of a flow back to back.
 *
 * A handle is a packet's number in its mempool, so that nothing has to be looked up and nothing is copied; the mbufs stay with
 * this program, and the reframer holds numbers.
 *
 *     l2fwd EAL-OPTIONS -- [-n PACKETS] [-t HOLD_NS] [-c]
 *
 * -n ends it with the burst in which so many packets have come (0: SIGINT or SIGTERM alone); with -c the time is
 * that of the packets' timestamps, in microseconds, as net_pcap gives them. Over captures, without huge pages and
 * without a network card:
 *
 *     l2fwd --no-huge -m 512 --no-pci --vdev net_pcap0,rx_pcap=in.pcap,tx_pcap=unused.pcap \
 *           --vdev net_pcap1,rx_pcap=in.pcap,tx_pcap=out.pcap -- -n 24000 -c
 *
 * Build it with:  cc -O2 l2fwd.c $(pkg-config --cflags --libs slipstream libdpdk) -o l2fwd
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mempool.h>

#include <slipstream.h>

#define BURST 64
#define MBUFS 32767 /* held, waiting to be polled, in the rings of both ports */
#define RING 1024

static volatile sig_atomic_t stop;
static struct rte_mempool *pool;
static struct rte_mbuf *by_number[MBUFS];
static uint64_t received, sent, dropped, trains;
static int number_at, timestamp_at = -1; /* where mbufs have their number and their timestamp */

static void on_signal(int number) { stop = number; }

/* Mempools number their objects when they are filled; the number goes where an mbuf has room for its user. */
static void number_mbuf(struct rte_mempool *mp, void *arg, void *object, unsigned number)
{
    struct rte_mbuf *m = object;
    (void)mp, (void)arg;
    by_number[number] = m;
    *RTE_MBUF_DYNFIELD(m, number_at, uint32_t *) = number;
}

static slip_packet packet_of(struct rte_mbuf *m)
{
    /* The headers are in the first segment; the length is that of all. */
    return (slip_packet){.data = rte_pktmbuf_mtod(m, const uint8_t *),
                         .captured = rte_pktmbuf_data_len(m),
                         .length = rte_pktmbuf_pkt_len(m),
                         .handle = *RTE_MBUF_DYNFIELD(m, number_at, uint32_t *)};
}

/* Nanoseconds of the time-stamp counter, which does not run backwards. */
static uint64_t now_ns(void)
{
    static uint64_t start, hz;
    uint64_t now = rte_rdtsc();
    if (!hz)
        start = now, hz = rte_get_tsc_hz();
    now -= start;
    return now / hz * 1000000000ull + now % hz * 1000000000ull / hz;
}

static void start_port(uint16_t port)
{
    struct rte_eth_conf conf = {0};
    int e = rte_eth_dev_configure(port, 1, 1, &conf);
    if (!e)
        e = rte_eth_rx_queue_setup(port, 0, RING, rte_eth_dev_socket_id(port), NULL, pool);
    if (!e)
        e = rte_eth_tx_queue_setup(port, 0, RING, rte_eth_dev_socket_id(port), NULL);
    if (!e)
        e = rte_eth_dev_start(port);
    if (e)
        rte_exit(2, "port %u: %s\n", port, rte_strerror(-e));
    rte_eth_promiscuous_enable(port); /* what has no such mode says so, and needs none */
}

/* Sends all of them; what a port does not take is dropped, and counted. */
static void send_burst(struct rte_mbuf **m, uint16_t n)
{
    uint16_t taken = rte_eth_tx_burst(1, 0, m, n);
    sent += taken;
    dropped += n - taken;
    rte_pktmbuf_free_bulk(m + taken, n - taken);
}

/* Sends what left before `now`; a train goes out in one burst. */
static void send_trains(slip_reframe *r, uint64_t now)
{
    slip_train left[BURST];
    uint32_t handles[SLIP_BURST];
    struct rte_mbuf *m[SLIP_BURST];
    int32_t n;
    while ((n = slip_reframe_poll(r, now, left, BURST, handles, SLIP_BURST)) > 0) {
        uint32_t packets = 0;
        for (int32_t t = 0; t < n; t++)
            for (uint32_t end = packets + left[t].count; packets < end; packets++)
                m[packets] = by_number[handles[packets]];
        trains += n;
        send_burst(m, packets);
    }
    if (n < 0)
        rte_exit(2, "poll: %s\n", slip_reframe_error(r));
}

static void push_or_exit(slip_reframe *r, const slip_packet *p, uint16_t n, uint64_t now)
{
    if (slip_reframe_push_burst(r, p, n, now) != SLIP_OK)
        rte_exit(2, "push: %s\n", slip_reframe_error(r));
}

/* The time is that of the packets: the same capture gives the same trains every time. */
static void replay(slip_reframe *r, uint64_t packets)
{
    struct rte_mbuf *m[BURST];
    uint64_t now = 0;
    while (!stop && (!packets || received < packets)) {
        uint16_t n = rte_eth_rx_burst(0, 0, m, BURST);
        for (uint16_t i = 0; i < n; i++) {
            uint64_t time = *RTE_MBUF_DYNFIELD(m[i], timestamp_at, rte_mbuf_timestamp_t *) * 1000;
            slip_packet p = packet_of(m[i]);
            now = time > now ? time : now;
            send_trains(r, now);
            push_or_exit(r, &p, 1, now);
        }
        received += n;
    }
    send_trains(r, SLIP_NEVER);
}

static void forward(slip_reframe *r, uint64_t packets)
{
    struct rte_mbuf *m[BURST];
    slip_packet p[BURST];
    while (!stop && (!packets || received < packets)) {
        uint64_t now = now_ns();
        uint16_t n = rte_eth_rx_burst(0, 0, m, BURST);
        for (uint16_t i = 0; i < n; i++) {
            p[i] = packet_of(m[i]);
            rte_prefetch0(p[i].data);
        }
        push_or_exit(r, p, n, now);
        received += n;
        if (slip_reframe_next_deadline(r) <= now)
            send_trains(r, now);
    }
    slip_reframe_drain(r);
    send_trains(r, now_ns());
}

int main(int argc, char **argv)
{
    int eal = rte_eal_init(argc, argv), option;
    if (eal < 0)
        rte_exit(2, "EAL: %s\n", rte_strerror(rte_errno));
    uint64_t packets = 0;
    int captured_time = 0;
    slip_reframe_config config;
    slip_reframe_config_init(&config, sizeof config);
    argv[eal] = argv[0];
    while ((option = getopt(argc - eal, argv + eal, "n:t:c")) != -1)
        switch (option) {
        case 'n': packets = strtoull(optarg, NULL, 10); break;
        case 't': config.hold_ns = strtoull(optarg, NULL, 10); break;
        case 'c': captured_time = 1; break;
        default: rte_exit(2, "l2fwd EAL-OPTIONS -- [-n PACKETS] [-t HOLD_NS] [-c]\n");
        }
    if (rte_eth_dev_count_avail() != 2)
        rte_exit(2, "two ports are needed, %u are there\n", rte_eth_dev_count_avail());
    pool = rte_pktmbuf_pool_create("packets", MBUFS, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (!pool)
        rte_exit(2, "mempool: %s\n", rte_strerror(rte_errno));
    const struct rte_mbuf_dynfield number = {"slipstream_number", sizeof(uint32_t), _Alignof(uint32_t), 0};
    if ((number_at = rte_mbuf_dynfield_register(&number)) < 0)
        rte_exit(2, "no room in the mbufs: %s\n", rte_strerror(rte_errno));
    rte_mempool_obj_iter(pool, number_mbuf, NULL);
    start_port(0);
    start_port(1);

    char why[256];
    slip_reframe *r = slip_reframe_new(&config, why, sizeof why);
    if (!r)
        rte_exit(2, "%s\n", why);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    if (captured_time && rte_mbuf_dyn_rx_timestamp_register(&timestamp_at, NULL) < 0)
        rte_exit(2, "no timestamps: %s\n", rte_strerror(rte_errno));
    if (captured_time)
        replay(r, packets);
    else
        forward(r, packets);

    slip_stats stats = {.size = sizeof stats};
    slip_reframe_stats(r, &stats);
    printf("%" PRIu64 " packets in, %" PRIu64 " out, %" PRIu64 " dropped, %" PRIu64 " trains; runs of one flow %.3f -> %.3f\n",
           received, sent, dropped, trains, (double)(received - stats.unclassified) / stats.runs_in,
           (double)(received - stats.unclassified) / stats.runs_out);
    slip_reframe_free(r);
    for (uint16_t port = 0; port < 2; port++)
        rte_eth_dev_stop(port), rte_eth_dev_close(port);
    return rte_eal_cleanup();
}
