/* Merges the TCP segments of a capture with DPDK's rte_gro, in bursts and in a context, and tells how many packets went and
 * what it took. Prints one JSON object.
 *
 * usage: rte_gro FILE.pcap WINDOW ROUNDS
 *
 * FILE is in the old format, in the byte order of this machine, of Ethernet frames with IPv4 and TCP. The context is flushed
 * after WINDOW packets. Packets are copied into mbufs outside of what is timed, 1024 at a time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_ether.h>
#include <rte_gro.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>

#define BURST RTE_GRO_MAX_BURST_ITEM_NUM
#define READY 1024

struct packet {
	const uint8_t *data;
	uint32_t len;
};

static struct packet *packets;
static size_t count;
static struct rte_mempool *pool;

static void fail(const char *what)
{
	fprintf(stderr, "rte_gro: %s\n", what);
	exit(2);
}

static void read_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	if (!file)
		fail("the capture can't be opened");
	fseek(file, 0, SEEK_END);
	long size = ftell(file);
	rewind(file);
	uint8_t *bytes = malloc(size);
	if (!bytes || fread(bytes, 1, size, file) != (size_t)size || size < 24)
		fail("the capture can't be read");
	fclose(file);
	packets = malloc(sizeof(*packets) * (size / 16));
	for (long at = 24; at + 16 <= size;) {
		uint32_t len;
		memcpy(&len, bytes + at + 8, 4);
		if (at + 16 + (long)len > size || len < 54)
			fail("a record is cut or too short");
		packets[count++] = (struct packet){bytes + at + 16, len};
		at += 16 + len;
	}
}

static struct rte_mbuf *mbuf_of(const struct packet *packet)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(pool);
	char *to = m ? rte_pktmbuf_append(m, packet->len) : NULL;
	if (!to)
		fail("no mbuf is left, or a packet is too long for one");
	memcpy(to, packet->data, packet->len);
	m->l2_len = 14;
	m->l3_len = (packet->data[14] & 15) * 4;
	m->l4_len = (packet->data[14 + m->l3_len + 12] >> 4) * 4;
	m->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
	return m;
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* One pass in bursts: time in ns; packets that went. */
static uint64_t bursts(uint64_t *merged)
{
	struct rte_gro_param param = {.gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = BURST, .max_item_per_flow = BURST};
	static struct rte_mbuf *ready[READY];
	uint64_t ns = 0;
	*merged = 0;
	for (size_t at = 0; at < count; at += READY) {
		size_t n = count - at < READY ? count - at : READY;
		uint16_t left[READY / BURST + 1];
		for (size_t i = 0; i < n; i++)
			ready[i] = mbuf_of(&packets[at + i]);
		uint64_t start = now();
		for (size_t i = 0; i < n; i += BURST)
			left[i / BURST] = rte_gro_reassemble_burst(ready + i, n - i < BURST ? n - i : BURST, &param);
		ns += now() - start;
		for (size_t i = 0; i < n; i += BURST) {
			uint16_t all = n - i < BURST ? n - i : BURST;
			*merged += all - left[i / BURST];
			for (uint16_t k = 0; k < left[i / BURST]; k++)
				rte_pktmbuf_free(ready[i + k]);
		}
	}
	return ns;
}

/* One pass with a context that is flushed after each `window` packets. */
static uint64_t context(size_t window, uint64_t *merged)
{
	struct rte_gro_param param = {.gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = 4096, .max_item_per_flow = 64};
	void *ctx = rte_gro_ctx_create(&param);
	struct rte_mbuf **ready = malloc(sizeof(*ready) * window), **out = malloc(sizeof(*out) * window);
	uint64_t ns = 0;
	*merged = 0;
	if (!ctx)
		fail("no context");
	for (size_t at = 0; at < count; at += window) {
		size_t n = count - at < window ? count - at : window, left = 0;
		for (size_t i = 0; i < n; i++)
			ready[i] = mbuf_of(&packets[at + i]);
		uint64_t start = now();
		for (size_t i = 0; i < n; i += BURST) {
			uint16_t all = n - i < BURST ? n - i : BURST;
			uint16_t passed = rte_gro_reassemble(ready + i, all, ctx);
			for (uint16_t k = 0; k < passed; k++)
				out[left++] = ready[i + k];
		}
		uint16_t got;
		while ((got = rte_gro_timeout_flush(ctx, 0, RTE_GRO_TCP_IPV4, out + left,
						    n - left < 4096 ? n - left : 4096)) > 0)
			left += got;
		ns += now() - start;
		*merged += n - left;
		for (size_t i = 0; i < left; i++)
			rte_pktmbuf_free(out[i]);
	}
	rte_gro_ctx_destroy(ctx);
	return ns;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		fail("usage: rte_gro FILE.pcap WINDOW ROUNDS");
	char *eal[] = {"rte_gro", "--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf", "-l", "0",
		       "--log-level", "error"};
	if (rte_eal_init(sizeof(eal) / sizeof(*eal), eal) < 0)
		fail("DPDK does not start");
	read_file(argv[1]);
	size_t window = strtoul(argv[2], NULL, 10);
	int rounds = atoi(argv[3]);
	pool = rte_pktmbuf_pool_create("packets", window + 2 * READY, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
	if (!pool || !window || !count)
		fail("no memory for packets, or nothing to do");
	uint64_t merged[2] = {0, 0}, least[2] = {UINT64_MAX, UINT64_MAX};
	for (int round = 0; round <= rounds; round++) {
		uint64_t a = bursts(&merged[0]), b = context(window, &merged[1]);
		if (round && a < least[0])
			least[0] = a;
		if (round && b < least[1])
			least[1] = b;
	}
	printf("{\"packets\": %zu, \"burst_merged\": %llu, \"burst_ns\": %.2f, \"context_merged\": %llu, \"context_ns\": %.2f}\n",
	       count, (unsigned long long)merged[0], (double)least[0] / count, (unsigned long long)merged[1],
	       (double)least[1] / count);
	return 0;
}
