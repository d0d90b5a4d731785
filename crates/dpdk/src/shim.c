/* The C side of the DPDK port: what DPDK has as inline functions and macros, a burst at a time.
 *
 * A packet lies in its mbuf at one place: behind the mbuf, a private area of 16 bytes and the usual head room.
 * That is 16 bytes behind a multiple of 64, as the pool wants it. Units are 64 bytes, counted from where the
 * mempool's memory begins; the unit of a packet is the one that begins 16 bytes before its first byte.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mempool.h>
#include <rte_pause.h>

#define UNIT 64
#define LEAD 16
#define PRIVATE 16
#define PACKET_AT (sizeof(struct rte_mbuf) + PRIVATE + RTE_PKTMBUF_HEADROOM)
#define ELSEWHERE UINT32_MAX
#define CACHE 512
#define BURST 256

_Static_assert(PACKET_AT % UNIT == LEAD, "packets begin 16 bytes behind a multiple of 64");

/* A mempool, and where its memory is. */
struct slip_dpdk_memory {
    struct rte_mempool *mempool;
    uint8_t *start;
    size_t size;
    /* Of the buffers behind mbufs: beginning of the first, distance, bytes of each. Where they lie unevenly, as
     * those do that may not cross a page, the distance is 0, and the bytes are those from a packet's first on. */
    size_t first, stride, len;
    /* Offset of the field that some drivers write a packet's time into; negative: there is none. */
    int time_at;
};

/* The place of a packet. */
struct slip_dpdk_place {
    uint32_t unit; /* ELSEWHERE: it can't be used where it is, and has to be copied */
    uint32_t len;
};

/* Settings of a device that so many shards use; opening it changes `queues` and `senders` to what it has. */
struct slip_dpdk_options {
    uint16_t queues, ring, mtu, shards, senders;
};

struct slip_dpdk_stats {
    uint64_t received, sent, missed, errors, send_errors, no_mbuf;
};

const char *slip_dpdk_error(int number) { return rte_strerror(number < 0 ? -number : number); }

/* Arguments that EAL took. What is wrong with them it explains on stdout, where results go: it says so on
 * stderr. */
int slip_dpdk_start(int argc, char **argv)
{
    fflush(stdout);
    int out = dup(STDOUT_FILENO);
    if (out >= 0)
        dup2(STDERR_FILENO, STDOUT_FILENO);
    int e = rte_eal_init(argc, argv);
    int why = rte_errno ? rte_errno : EINVAL;
    fflush(stdout);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        close(out);
    }
    return e < 0 ? -why : e;
}

int slip_dpdk_stop(void) { return rte_eal_cleanup(); }

/* The folder that EAL keeps its files in while it runs. */
const char *slip_dpdk_folder(void) { return rte_eal_get_runtime_dir(); }

struct extent {
    uintptr_t first, last;
    size_t covered;
};

static void measure_chunk(struct rte_mempool *mp, void *opaque, struct rte_mempool_memhdr *chunk, unsigned number)
{
    struct extent *all = opaque;
    uintptr_t start = (uintptr_t)chunk->addr;
    (void)mp, (void)number;
    all->first = start < all->first ? start : all->first;
    all->last = start + chunk->len > all->last ? start + chunk->len : all->last;
    all->covered += chunk->len;
}

struct spacing {
    uintptr_t first;
    size_t stride;
    bool even;
};

static void measure_spacing(struct rte_mempool *mp, void *opaque, void *object, unsigned number)
{
    struct spacing *all = opaque;
    uintptr_t at = (uintptr_t)object;
    (void)mp;
    if (number == 0)
        all->first = at;
    uintptr_t distance = at > all->first ? at - all->first : all->first - at;
    all->even &= distance % all->stride == 0;
}

/* Makes the mempool: `mbufs` of them, for packets of up to `room` bytes. -EFAULT: its memory has holes. */
int slip_dpdk_memory_new(uint32_t mbufs, uint16_t room, struct slip_dpdk_memory *memory)
{
    unsigned cache = mbufs / 4 < CACHE ? mbufs / 4 : CACHE;
    struct rte_mempool *mp =
        rte_pktmbuf_pool_create("slipstream", mbufs, cache, PRIVATE, RTE_PKTMBUF_HEADROOM + room, SOCKET_ID_ANY);
    if (!mp)
        return rte_errno ? -rte_errno : -ENOMEM;
    struct extent extent = {UINTPTR_MAX, 0, 0};
    rte_mempool_mem_iter(mp, measure_chunk, &extent);
    uintptr_t start = extent.first & ~(uintptr_t)(UNIT - 1);
    if (extent.covered != extent.last - extent.first) {
        rte_mempool_free(mp);
        return -EFAULT;
    }
    struct spacing spacing = {0, mp->header_size + mp->elt_size + mp->trailer_size, true};
    rte_mempool_obj_iter(mp, measure_spacing, &spacing);
    size_t stride = spacing.even ? spacing.stride : 0;
    size_t len = stride ? RTE_PKTMBUF_HEADROOM + room : room;
    size_t first = spacing.first - start + sizeof(struct rte_mbuf) + PRIVATE;
    *memory = (struct slip_dpdk_memory){mp, (uint8_t *)start, extent.last - start, stride ? first % stride : first, stride, len, -1};
    return 0;
}

/* Frees the mempool; returns how many of its mbufs had not come back. */
uint32_t slip_dpdk_memory_free(const struct slip_dpdk_memory *memory)
{
    uint32_t left = rte_mempool_in_use_count(memory->mempool);
    rte_mempool_free(memory->mempool);
    return left;
}

uint32_t slip_dpdk_free_mbufs(const struct slip_dpdk_memory *memory) { return rte_mempool_avail_count(memory->mempool); }

static struct rte_mbuf *mbuf_of(const struct slip_dpdk_memory *memory, uint32_t unit)
{
    return (struct rte_mbuf *)(memory->start + (size_t)unit * UNIT + LEAD - PACKET_AT);
}

static uint32_t unit_of(const struct slip_dpdk_memory *memory, const struct rte_mbuf *m)
{
    return ((const uint8_t *)m - memory->start + PACKET_AT - LEAD) / UNIT;
}

/* Threads that DPDK knows have free mbufs at hand; others share those of all. */
static void know_this_thread(void)
{
    static _Thread_local bool asked;
    if (rte_lcore_id() != LCORE_ID_ANY || asked)
        return;
    asked = true;
    (void)rte_thread_register();
}

/* The unit of a free mbuf; ELSEWHERE: there is none. */
uint32_t slip_dpdk_take(const struct slip_dpdk_memory *memory)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(memory->mempool);
    return m ? unit_of(memory, m) : ELSEWHERE;
}

/* Gives mbufs back, whose packets were the pool's. */
void slip_dpdk_give_back(const struct slip_dpdk_memory *memory, const uint32_t *units, uint32_t n)
{
    void *mbufs[BURST];
    know_this_thread();
    for (uint32_t at = 0, part; at < n; at += part) {
        part = n - at < BURST ? n - at : BURST;
        for (uint32_t i = 0; i < part; i++)
            mbufs[i] = mbuf_of(memory, units[at + i]);
        rte_mempool_put_bulk(memory->mempool, mbufs, part);
    }
}

/* Makes sure of a device and gives its number; -ENODEV: there is none. `made`: it was not there before. */
int slip_dpdk_find(const char *name, const char *arguments, uint16_t *port, bool *made)
{
    *made = false;
    if (rte_eth_dev_get_port_by_name(name, port) == 0)
        return 0;
    int e = rte_dev_probe(arguments);
    if (e < 0)
        return e;
    *made = true;
    return rte_eth_dev_get_port_by_name(name, port) == 0 ? 0 : -ENODEV;
}

/* The name of the n-th device that there is, or NULL. */
const char *slip_dpdk_name(uint16_t n)
{
    static char name[RTE_ETH_NAME_MAX_LEN];
    uint16_t port;
    RTE_ETH_FOREACH_DEV(port)
    if (n-- == 0)
        return rte_eth_dev_get_name_by_port(port, name) == 0 ? name : NULL;
    return NULL;
}

/* Both directions of a connection come by the same queue with this key (Woo and Park 2012). */
static uint8_t symmetric_key[64];

static void spread(const struct rte_eth_dev_info *info, struct rte_eth_conf *conf)
{
    for (size_t i = 0; i < sizeof symmetric_key; i++)
        symmetric_key[i] = i % 2 ? 0x5a : 0x6d;
    conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    conf->rx_adv_conf.rss_conf.rss_hf = info->flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP);
    if (info->hash_key_size > 0 && info->hash_key_size <= sizeof symmetric_key) {
        conf->rx_adv_conf.rss_conf.rss_key = symmetric_key;
        conf->rx_adv_conf.rss_conf.rss_key_len = info->hash_key_size;
    }
}

/* The queues in turn, as shards are chosen in software. A device that can't be told has its own table, mostly the same. */
static void share_table(uint16_t port, uint16_t places, uint16_t queues)
{
    struct rte_eth_rss_reta_entry64 table[1024 / RTE_ETH_RETA_GROUP_SIZE] = {0};
    if (!places || places > 1024)
        return;
    for (uint16_t place = 0; place < places; place++) {
        struct rte_eth_rss_reta_entry64 *group = &table[place / RTE_ETH_RETA_GROUP_SIZE];
        group->mask |= UINT64_C(1) << place % RTE_ETH_RETA_GROUP_SIZE;
        group->reta[place % RTE_ETH_RETA_GROUP_SIZE] = place % 128 % queues;
    }
    (void)rte_eth_dev_rss_reta_update(port, table, places);
}

/* Opens a device. -EMLINK: it has fewer queues, as many as `options` says then. */
int slip_dpdk_open(uint16_t port, const struct slip_dpdk_memory *memory, struct slip_dpdk_options *options)
{
    struct rte_eth_dev_info info;
    struct rte_eth_conf conf = {0};
    int e = rte_eth_dev_info_get(port, &info);
    if (e)
        return e;
    if (options->queues > info.max_rx_queues) {
        options->queues = info.max_rx_queues;
        return -EMLINK;
    }
    /* Each shard gets as many queues as the others, where there are so many; some devices have fewer than shards. */
    uint16_t shards = options->shards, ring = options->ring, send_ring = ring;
    uint16_t queues = (options->queues + shards - 1) / shards * shards;
    if (queues > info.max_rx_queues)
        queues = info.max_rx_queues >= shards ? info.max_rx_queues / shards * shards : info.max_rx_queues;
    uint16_t senders = shards < info.max_tx_queues ? shards : info.max_tx_queues;
    options->queues = queues;
    options->senders = senders;
    if (queues > 1 && info.flow_type_rss_offloads)
        spread(&info, &conf);
    size_t longest = (size_t)options->mtu + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 2 * RTE_VLAN_HLEN;
    conf.rxmode.mtu = options->mtu;
    if (longest + RTE_PKTMBUF_HEADROOM > rte_pktmbuf_data_room_size(memory->mempool))
        conf.rxmode.offloads |= info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
    conf.txmode.offloads |= info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    if ((e = rte_eth_dev_configure(port, queues, senders, &conf)) || (e = rte_eth_dev_adjust_nb_rx_tx_desc(port, &ring, &send_ring)))
        return e;
    int node = rte_eth_dev_socket_id(port);
    for (uint16_t queue = 0; queue < queues; queue++)
        if ((e = rte_eth_rx_queue_setup(port, queue, ring, node, NULL, memory->mempool)))
            return e;
    for (uint16_t queue = 0; queue < senders; queue++)
        if ((e = rte_eth_tx_queue_setup(port, queue, send_ring, node, NULL)))
            return e;
    if ((e = rte_eth_dev_start(port)))
        return e;
    if (conf.rxmode.mq_mode == RTE_ETH_MQ_RX_RSS)
        share_table(port, info.reta_size, queues);
    return 0;
}

/* A device without such a mode says so, and needs none. */
void slip_dpdk_promiscuous(uint16_t port) { (void)rte_eth_promiscuous_enable(port); }

/* Finds where net_pcap writes the time of a packet, in microseconds; the units of others are their own. Asked
 * when the device was started. */
int slip_dpdk_find_time(uint16_t port, struct slip_dpdk_memory *memory)
{
    struct rte_eth_dev_info info;
    if (rte_eth_dev_info_get(port, &info) || strcmp(info.driver_name, "net_pcap"))
        return -ENOTSUP;
    memory->time_at = rte_mbuf_dynfield_lookup(RTE_MBUF_DYNFIELD_TIMESTAMP_NAME, NULL);
    return memory->time_at < 0 ? -ENOTSUP : 0;
}

void slip_dpdk_close(uint16_t port, bool remove)
{
    struct rte_eth_dev_info info;
    struct rte_device *device = rte_eth_dev_info_get(port, &info) == 0 ? info.device : NULL;
    (void)rte_eth_dev_stop(port);
    (void)rte_eth_dev_close(port);
    if (remove && device)
        (void)rte_dev_remove(device);
}

void slip_dpdk_stats(uint16_t port, struct slip_dpdk_stats *stats)
{
    struct rte_eth_stats now = {0};
    (void)rte_eth_stats_get(port, &now);
    *stats = (struct slip_dpdk_stats){now.ipackets, now.opackets, now.imissed, now.ierrors, now.oerrors, now.rx_nombuf};
}

_Static_assert(offsetof(struct rte_mbuf, refcnt) == offsetof(struct rte_mbuf, data_off) + 2 &&
                   offsetof(struct rte_mbuf, nb_segs) == offsetof(struct rte_mbuf, data_off) + 4,
               "three fields that one load reads");

/* Says that a packet is one segment, begins where the pool wants it, and that nobody else has it. */
static inline bool is_whole(const struct rte_mbuf *m)
{
    static const uint16_t usual[3] = {RTE_PKTMBUF_HEADROOM, 1, 1};
    return memcmp((const uint8_t *)m + offsetof(struct rte_mbuf, data_off), usual, sizeof usual) == 0;
}

uint16_t slip_dpdk_receive(uint16_t port, uint16_t queue, const struct slip_dpdk_memory *memory, struct rte_mbuf **mbufs,
                           struct slip_dpdk_place *places, uint16_t max)
{
    know_this_thread();
    uint16_t n = rte_eth_rx_burst(port, queue, mbufs, max);
    for (uint16_t i = 0; i < n; i++) {
        const struct rte_mbuf *m = mbufs[i];
        bool here = is_whole(m) && m->pool == memory->mempool && RTE_MBUF_DIRECT(m);
        rte_prefetch0((const uint8_t *)m + PACKET_AT);
        places[i] = (struct slip_dpdk_place){here ? unit_of(memory, m) : ELSEWHERE, m->pkt_len};
    }
    return n;
}

/* A packet's time as its driver wrote it, or 0. */
uint64_t slip_dpdk_time(const struct slip_dpdk_memory *memory, const struct rte_mbuf *m)
{
    return memory->time_at < 0 ? 0 : *RTE_MBUF_DYNFIELD(m, memory->time_at, const rte_mbuf_timestamp_t *);
}

/* Copies a packet out of its mbufs, and frees them. */
void slip_dpdk_copy_out(struct rte_mbuf *m, uint8_t *to, uint32_t len)
{
    for (const struct rte_mbuf *part = m; part && len; part = part->next) {
        uint32_t here = part->data_len < len ? part->data_len : len;
        memcpy(to, rte_pktmbuf_mtod(part, const uint8_t *), here);
        to += here;
        len -= here;
    }
    rte_pktmbuf_free(m);
}

/* Copies a packet into new mbufs; NULL: there are not so many. */
struct rte_mbuf *slip_dpdk_copy_in(const struct slip_dpdk_memory *memory, const uint8_t *from, uint32_t len)
{
    struct rte_mbuf *first = rte_pktmbuf_alloc(memory->mempool), *last = first;
    if (!first)
        return NULL;
    for (uint32_t left = len;;) {
        uint32_t room = rte_pktmbuf_tailroom(last), here = left < room ? left : room;
        memcpy(rte_pktmbuf_mtod(last, uint8_t *), from, here);
        last->data_len = here;
        from += here;
        left -= here;
        if (!left)
            break;
        if (first->nb_segs == RTE_MBUF_MAX_NB_SEGS || !(last->next = rte_pktmbuf_alloc(memory->mempool))) {
            rte_pktmbuf_free(first);
            return NULL;
        }
        last = last->next;
        first->nb_segs++;
    }
    first->pkt_len = len;
    return first;
}

/* Sends, and waits up to `cycles` for room; returns how many the device took. */
static inline uint16_t send_all(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n, uint64_t cycles)
{
    uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, n);
    if (likely(sent == n))
        return n;
    for (uint64_t since = rte_rdtsc(); sent < n && rte_rdtsc() - since < cycles;) {
        rte_pause();
        sent += rte_eth_tx_burst(port, queue, mbufs + sent, n - sent);
    }
    return sent;
}

/* Sends packets that lie in their mbufs, and where they don't, those that `mbufs` has. Waits up to `cycles` for
 * room; what the device doesn't take then is freed. Returns how many it took. */
uint16_t slip_dpdk_send(uint16_t port, uint16_t queue, const struct slip_dpdk_memory *memory, const struct slip_dpdk_place *places,
                        struct rte_mbuf **mbufs, uint16_t n, uint64_t cycles)
{
    know_this_thread();
    for (uint16_t i = 0; i < n; i++)
        if (likely(places[i].unit != ELSEWHERE)) {
            /* All else in the mbuf is as it was when it came, or was taken. */
            struct rte_mbuf *m = mbufs[i] = mbuf_of(memory, places[i].unit);
            m->data_len = places[i].len;
            m->pkt_len = places[i].len;
            m->ol_flags = 0;
        }
    uint16_t sent = send_all(port, queue, mbufs, n, cycles);
    if (sent < n)
        rte_pktmbuf_free_bulk(mbufs + sent, n - sent);
    return sent;
}

/* Packets that went from one device to another. */
struct slip_dpdk_relayed {
    uint32_t received, sent;
    uint64_t bytes_received, bytes_sent;
};

static uint64_t bytes_of(struct rte_mbuf **mbufs, uint16_t n)
{
    uint64_t bytes = 0;
    for (uint16_t i = 0; i < n; i++)
        bytes += mbufs[i]->pkt_len;
    return bytes;
}

/* Receives packets and sends them, mbufs and all. Waits up to `cycles` for room, as slip_dpdk_send does. */
void slip_dpdk_relay(uint16_t from, uint16_t from_queue, uint16_t to, uint16_t to_queue, uint16_t max, uint64_t cycles,
                     struct slip_dpdk_relayed *relayed)
{
    struct rte_mbuf *mbufs[BURST];
    know_this_thread();
    uint16_t n = rte_eth_rx_burst(from, from_queue, mbufs, max < BURST ? max : BURST);
    /* The receiving card's notes are no orders to the sending one; whose memory it is stays noted. */
    for (uint16_t i = 0; i < n; i++)
        mbufs[i]->ol_flags &= RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;
    uint64_t bytes = bytes_of(mbufs, n);
    *relayed = (struct slip_dpdk_relayed){n, n, bytes, bytes};
    if (!n)
        return;
    uint16_t sent = send_all(to, to_queue, mbufs, n, cycles);
    if (unlikely(sent < n)) {
        relayed->sent = sent;
        relayed->bytes_sent -= bytes_of(mbufs + sent, n - sent);
        rte_pktmbuf_free_bulk(mbufs + sent, n - sent);
    }
}

/* Lets a device free what it has sent; some can't be asked. */
void slip_dpdk_complete(uint16_t port, uint16_t queue) { (void)rte_eth_tx_done_cleanup(port, queue, 0); }

uint64_t slip_dpdk_cycles(uint64_t ns)
{
    uint64_t hz = rte_get_tsc_hz();
    return ns / 1000000000 * hz + ns % 1000000000 * hz / 1000000000;
}
