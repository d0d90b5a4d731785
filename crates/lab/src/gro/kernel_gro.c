/* Sends the frames of a capture into one end of a pair of virtual interfaces, and tells what the kernel's GRO makes of them at
 * the other: a line for each frame that a packet socket there is handed, with the port that it is for and its packets.
 *
 * usage: kernel_gro FILE.pcap FROM TO
 *
 * FILE is in the old format, in the byte order of this machine, of Ethernet frames with TCP or UDP. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* virtio_net_hdr, in the byte order of this machine. */
struct offload {
	uint8_t flags, kind;
	uint16_t header, size, start, offset;
};

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static int open_at(const char *name, int protocol)
{
	int fd = socket(AF_PACKET, SOCK_RAW, 0), room = 256 << 20, one = 1;
	struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = if_nametoindex(name)};
	if (fd < 0 || !at.sll_ifindex)
		fail(name);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	if (protocol && setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)))
		fail("PACKET_VNET_HDR");
	/* PACKET_IGNORE_OUTGOING */
	if (protocol)
		setsockopt(fd, SOL_PACKET, 23, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)))
		fail("bind");
	return fd;
}

static void tell(const uint8_t *bytes, ssize_t len)
{
	struct offload offload;
	const uint8_t *ip = bytes + sizeof(offload) + 14;
	memcpy(&offload, bytes, sizeof(offload));
	if (len < (ssize_t)sizeof(offload) + 14 + 28)
		return;
	int v4 = ip[-2] == 8 && ip[-1] == 0, v6 = ip[-2] == 0x86 && ip[-1] == 0xdd;
	if (!v4 && !v6)
		return;
	const uint8_t *l4 = ip + (v4 ? (ip[0] & 15) * 4 : 40);
	int tcp = (v4 ? ip[9] : ip[6]) == 6;
	long total = v4 ? ip[2] << 8 | ip[3] : 40 + (ip[4] << 8 | ip[5]);
	long payload = total - (l4 - ip) - (tcp ? (l4[12] >> 4) * 4 : 8);
	long packets = (offload.kind & 0x7f) && offload.size ? (payload + offload.size - 1) / offload.size : 1;
	printf("%d %ld\n", l4[2] << 8 | l4[3], packets);
}

static void take(int fd, int wait_ms)
{
	static uint8_t bytes[1 << 17];
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	while (poll(&ready, 1, wait_ms) > 0) {
		ssize_t len = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (len > 0)
			tell(bytes, len);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int from = open_at(argv[2], 0), to = open_at(argv[3], ETH_P_ALL);
	FILE *file = fopen(argv[1], "rb");
	static struct {
		uint32_t seconds, fraction, len, original;
	} record;
	/* The frames of a flow, which have one time, are sent in one call. */
	static uint8_t frames[256][2048];
	static struct iovec parts[256];
	static struct mmsghdr messages[256];
	unsigned n = 0;
	uint32_t last = 0;
	if (!file || fseek(file, 24, SEEK_SET))
		fail(argv[1]);
	for (;;) {
		int more = fread(&record, sizeof(record), 1, file) == 1;
		if (n && (!more || record.seconds != last || n == 256)) {
			for (unsigned sent = 0; sent < n;) {
				int now = sendmmsg(from, messages + sent, n - sent, 0);
				if (now <= 0)
					fail("sendmmsg");
				sent += now;
			}
			n = 0;
			take(to, 0);
		}
		if (!more)
			break;
		last = record.seconds;
		if (record.len > sizeof(frames[0]) || fread(frames[n], record.len, 1, file) != 1)
			fail("a record");
		parts[n] = (struct iovec){frames[n], record.len};
		messages[n].msg_hdr.msg_iov = &parts[n];
		messages[n].msg_hdr.msg_iovlen = 1;
		n++;
	}
	take(to, 200);
	return 0;
}
