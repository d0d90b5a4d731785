/* Slipstream: packets in as they come, out as trains. The C interface of the embedded reframer, and of the sketches.
 *
 * This file is made by cbindgen; a test makes it anew and compares.
 */

#ifndef SLIPSTREAM_H
#define SLIPSTREAM_H

#include <stddef.h>
#include <stdint.h>

/**
 * It worked. Functions that count return the count instead, which is not negative.
 */
#define SLIP_OK 0

/**
 * A pointer that must not be NULL is.
 */
#define SLIP_E_NULL -1

/**
 * The object was freed already, or is none of this library's.
 */
#define SLIP_E_OBJECT -2

/**
 * An argument is out of range.
 */
#define SLIP_E_ARGUMENT -3

/**
 * The time is before that of an earlier packet.
 */
#define SLIP_E_TIME -4

/**
 * More packets in a burst than SLIP_BURST.
 */
#define SLIP_E_TOO_MANY -5

/**
 * Trains wait to be polled, and there is no room for more.
 */
#define SLIP_E_UNPOLLED -6

/**
 * A buffer is too small for what could come.
 */
#define SLIP_E_BUFFER -7

/**
 * The setting can't be had.
 */
#define SLIP_E_CONFIG -8

/**
 * This kind of sketch does not answer this question, or the two do not fit together.
 */
#define SLIP_E_UNSUPPORTED -9

/**
 * A bug in the library. The object can only be freed.
 */
#define SLIP_E_INTERNAL -10

/**
 * Of trains that leave at the same time, that of the oldest flow first.
 */
#define SLIP_POLICY_OLDEST 0

/**
 * ... the one that waited longest first.
 */
#define SLIP_POLICY_WAITING 1

/**
 * ... that of the shortest flow first.
 */
#define SLIP_POLICY_SHORTEST 2

/**
 * A flow is held from its first packet on.
 */
#define SLIP_ADMIT_ALWAYS 0

/**
 * A flow's first packet passes at once.
 */
#define SLIP_ADMIT_SECOND 1

/**
 * Packets begin with an Ethernet header.
 */
#define SLIP_LINK_ETHERNET 1

/**
 * Packets begin with an IP header.
 */
#define SLIP_LINK_RAW_IP 101

/**
 * Packets in a burst, and in a train, at most.
 */
#define SLIP_BURST 256

/**
 * The flow number of a packet that belongs to none.
 */
#define SLIP_NO_FLOW 4294967295

/**
 * The deadline where nothing is inside.
 */
#define SLIP_NEVER 18446744073709551615ull

/**
 * The latest time in ns at which packets can arrive, about 584 years: a push after that returns
 * SLIP_E_ARGUMENT.
 */
#define SLIP_LAST 18446744069709551613ull

/**
 * A reframer: handles of packets go in as the packets come, and out as trains, packets of a flow back to
 * back.
 *
 * A handle is any number that says to the caller which packet it is (an index into a mempool, for example);
 * the bytes are read while a push runs and never again. Packets are pushed in the order of their arrival,
 * with the time at which they arrived; times are nanoseconds of any clock that does not run backwards, and
 * several packets may have the same. What has left by some time is polled with that time, until there is no
 * more, as often as one likes: what comes out, in which order and with which release times depends on the
 * packets and their times alone, not on when one polled. A train leaves when it is full, when its first
 * packet has waited for hold_ns, when there is no room, or when a packet of its flow passes at once;
 * whatever leaves at the same nanosecond leaves in the order of the policy, so that slip_reframe_poll gives
 * it from the next nanosecond on. Between packets, poll again at slip_reframe_next_deadline. Who pushes and
 * never polls is refused once 2 * capacity + SLIP_BURST handles are inside, held and waiting together;
 * nothing is ever lost, and every handle that was taken comes out exactly once. At the end, call
 * slip_reframe_drain and poll the rest. There is no thread, no clock and no file inside, and no allocation
 * between slip_reframe_new and slip_reframe_free but of slip_reframe_stats and of texts of errors.
 *
 * Different reframers may be used by different threads; one of them by one thread at a time. After
 * slip_reframe_free a pointer is no longer to be used: until a thousand more reframers were freed, functions
 * then return SLIP_E_OBJECT and do nothing; after that the pointer may be that of another. A pointer that
 * slip_reframe_new never returned can't be told from one that it did.
 */
typedef struct slip_reframe slip_reframe;

/**
 * A sketch: how much came of which key, in little memory. Different ones may be used by different threads;
 * one of them by one thread at a time. After slip_sketch_free, the same holds as for a reframer.
 */
typedef struct slip_sketch slip_sketch;

/**
 * Settings of a reframer. slip_reframe_config_init fills in what is usual; change what you want to be
 * otherwise.
 */
typedef struct slip_reframe_config {
    /**
     * Bytes of this structure.
     */
    size_t size;
    /**
     * Longest wait of any packet, in ns, up to 4 s; 0: packets pass at once.
     */
    uint64_t hold_ns;
    /**
     * Bytes held at most, lengths on the wire, up to 3 GiB; then the oldest train leaves.
     */
    uint64_t capacity_bytes;
    /**
     * Seed of the flow table's hash. 0: a secret one, as it must be where packets come from a network.
     * Trains don't depend on it.
     */
    uint64_t seed;
    /**
     * Packets that pass at once, after the train of their own flow: a rule such as "tcp syn" or "udp port
     * 53", or "none". NULL: "tcp syn".
     */
    const char *bypass;
    /**
     * Packets in a train at which it leaves at once, 1 to SLIP_BURST.
     */
    uint32_t burst;
    /**
     * Packets held at most, 1 to 2^24; then the oldest train leaves.
     */
    uint32_t capacity;
    /**
     * Flows whose age and size are remembered, 1 to 2^28; at least 1024 and twice the capacity are.
     */
    uint32_t flows;
    /**
     * The order of trains that leave at the same time: SLIP_POLICY_*.
     */
    uint32_t policy;
    /**
     * From which packet on a flow is held: SLIP_ADMIT_*.
     */
    uint32_t admit;
    /**
     * With which header packets begin: SLIP_LINK_*, or another number of the list that captures use
     * (LINKTYPE_*).
     */
    uint32_t link_type;
    /**
     * 1: the innermost header of a tunnel makes the flow; 0: the outermost one.
     */
    uint32_t inner;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} slip_reframe_config;

/**
 * The flow of a packet, where the caller knows it already.
 */
typedef struct slip_key {
    /**
     * Source address in network order; of IPv4 the first four bytes count.
     */
    uint8_t src[16];
    /**
     * Destination address, the same way.
     */
    uint8_t dst[16];
    /**
     * Source port in the order of the machine; 0 for protocols without ports.
     */
    uint16_t src_port;
    /**
     * Destination port, the same way.
     */
    uint16_t dst_port;
    /**
     * VLAN id, 1 to 4095; 0 without a tag. Pass the bytes of packets whose tag has the id 0, or that have
     * more than one.
     */
    uint16_t vlan;
    /**
     * 4 or 6.
     */
    uint8_t ip_version;
    /**
     * IP protocol: 6 is TCP, 17 is UDP.
     */
    uint8_t protocol;
    /**
     * TCP flags (FIN 0x01, SYN 0x02 … CWR 0x80), for rules such as `tcp syn`; 0 where it is not TCP.
     */
    uint8_t tcp_flags;
    /**
     * Must be 0.
     */
    uint8_t reserved[3];
} slip_key;

/**
 * A packet to be pushed. Its bytes are read while slip_reframe_push_burst runs, and never again.
 */
typedef struct slip_packet {
    /**
     * Its bytes, from the link-layer header on; as many as reach to the end of the transport header are
     * enough. NULL where `key` says all, and of a packet without a flow, which passes at once.
     */
    const uint8_t *data;
    /**
     * Its flow, read from `data` where this is NULL.
     */
    const struct slip_key *key;
    /**
     * Number of bytes at `data`.
     */
    uint32_t captured;
    /**
     * Its length on the wire in bytes; 0: as many as `captured`.
     */
    uint32_t length;
    /**
     * Any number that says to the caller which packet it is.
     */
    uint32_t handle;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} slip_packet;

/**
 * Packets of one flow that left together. Their handles stand one behind the other, those of the next train
 * behind them.
 */
typedef struct slip_train {
    /**
     * When it left, in ns.
     */
    uint64_t release_ns;
    /**
     * Number of its flow, SLIP_NO_FLOW for a packet that can't be classified. Of two trains that leave
     * within a hold of each other it is the same only if their flows are.
     */
    uint32_t flow;
    /**
     * Number of its packets, 1 to SLIP_BURST.
     */
    uint32_t count;
} slip_train;

/**
 * Counters of a reframer. Set `size` to sizeof(slip_stats) before slip_reframe_stats fills in the rest.
 *
 * Packets in = packets out + held.
 */
typedef struct slip_stats {
    /**
     * Bytes of this structure.
     */
    size_t size;
    /**
     * Packets that were taken.
     */
    uint64_t packets_in;
    /**
     * Packets that left, polled or not.
     */
    uint64_t packets_out;
    /**
     * ... of those, packets that wait to be polled.
     */
    uint64_t unpolled;
    /**
     * Packets held now.
     */
    uint64_t held;
    /**
     * Most packets held at once.
     */
    uint64_t held_max;
    /**
     * Packets without a flow, which passed at once.
     */
    uint64_t unclassified;
    /**
     * Packets of a flow that passed at once.
     */
    uint64_t bypassed;
    /**
     * Runs of one flow among the packets that came in.
     */
    uint64_t runs_in;
    /**
     * ... and among those that went out.
     */
    uint64_t runs_out;
    /**
     * Trains that left.
     */
    uint64_t trains;
    /**
     * ... because they were full.
     */
    uint64_t released_full;
    /**
     * ... because their first packet had waited for the hold.
     */
    uint64_t released_deadline;
    /**
     * ... because there was no room.
     */
    uint64_t released_capacity;
    /**
     * ... because a packet of their flow passed at once, those packets included.
     */
    uint64_t released_bypass;
    /**
     * ... because of slip_reframe_drain.
     */
    uint64_t released_drain;
    /**
     * Flows that were forgotten because the flow table was full.
     */
    uint64_t flow_evictions;
    /**
     * Flows far from where their hash says. Above 0, somebody knows the seed.
     */
    uint64_t long_probes;
    /**
     * Added delay of packets that left: mean in ns.
     */
    uint64_t delay_mean_ns;
    /**
     * ... median, within 0.4 %.
     */
    uint64_t delay_p50_ns;
    /**
     * ... 99th percentile, within 0.4 %.
     */
    uint64_t delay_p99_ns;
    /**
     * ... greatest.
     */
    uint64_t delay_max_ns;
} slip_stats;

/**
 * Settings of a sketch. slip_sketch_config_init fills in what is usual; change what you want to be
 * otherwise.
 */
typedef struct slip_sketch_config {
    /**
     * Bytes of this structure.
     */
    size_t size;
    /**
     * Its kind: "count-min", "flow-radar", "space-saving", "rev-sketch", "two-level", "mrac", "fm",
     * "linear-counting", "univmon", "exaloglog", "exaloglog-hip", "ddsketch" or "exact". NULL:
     * "space-saving".
     */
    const char *kind;
    /**
     * The most bytes that its tables may take, up to 64 GiB; not of "exact", whose table grows with the
     * keys.
     */
    uint64_t memory;
    /**
     * Seed of all hashes. Sketches can be merged only where it is the same. 0: a secret one, as it must be
     * where somebody may choose keys.
     */
    uint64_t seed;
    /**
     * Bytes of a key: 4, 8, 13 or 16.
     */
    uint32_t key_length;
    /**
     * Of "count-min": how many of the heaviest keys it keeps, for slip_sketch_top.
     */
    uint32_t keep;
    /**
     * Of "two-level": how many bytes of the key are the source.
     */
    uint32_t source_length;
    /**
     * 0: none; else an aggregator in front adds up what belongs to one key.
     */
    uint32_t aggregate;
} slip_sketch_config;

/**
 * The answer of a sketch about a key: the best guess, and bounds that hold as the documentation of its kind
 * says.
 */
typedef struct slip_estimate {
    /**
     * The best guess.
     */
    uint64_t estimate;
    /**
     * No less than this.
     */
    uint64_t lower;
    /**
     * No more than this.
     */
    uint64_t upper;
} slip_estimate;

/**
 * One of the heaviest keys.
 */
typedef struct slip_heavy {
    /**
     * Its size.
     */
    struct slip_estimate size;
    /**
     * The key, with zeros behind it.
     */
    uint8_t key[16];
} slip_heavy;

/**
 * The answer of a sketch about all keys together, with bounds as those of slip_estimate.
 */
typedef struct slip_figure {
    /**
     * The best guess.
     */
    double estimate;
    /**
     * No less than this.
     */
    double lower;
    /**
     * No more than this.
     */
    double upper;
} slip_figure;

/**
 * The number of keys that have one size.
 */
typedef struct slip_size_count {
    /**
     * The size.
     */
    uint64_t size;
    /**
     * Keys of that size, as estimated.
     */
    double keys;
} slip_size_count;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the meaning of a code, in words. The text is there as long as the program runs.
 */
const char *slip_error_text(int code);

/**
 * The version of the library, such as "0.1.0". The text is there as long as the program runs.
 */
const char *slip_version(void);

/**
 * Fills in what is usual: a hold of 64 µs, bursts of 32, room for 8192 packets, "tcp syn" passes at once.
 * `size` is sizeof(slip_reframe_config).
 */
int slip_reframe_config_init(struct slip_reframe_config *config, size_t size);

/**
 * Makes a reframer. `config` is NULL for what is usual. Where a setting can't be had, or the memory that it
 * asks for, NULL is returned, and `error`, a buffer of `error_size` bytes (NULL where there is none), says
 * why. Memory is asked for before it is taken: where another thread takes it in between, or the system
 * promised what it doesn't have, the process ends.
 */
struct slip_reframe *slip_reframe_new(const struct slip_reframe_config *config,
                                      char *error,
                                      size_t error_size);

/**
 * Takes a packet that arrived at `now_ns`, with its bytes from the link-layer header on. Returns SLIP_OK, or
 * a code; the packet is still the caller's then.
 */
int slip_reframe_push(struct slip_reframe *reframe,
                      uint64_t now_ns,
                      uint32_t handle,
                      const uint8_t *data,
                      uint32_t length);

/**
 * Takes `n` packets, up to SLIP_BURST, that arrived at `now_ns`, in the order of their arrival. Returns
 * SLIP_OK, or a code; all packets are still the caller's then.
 */
int slip_reframe_push_burst(struct slip_reframe *reframe,
                            const struct slip_packet *packets,
                            uint32_t n,
                            uint64_t now_ns);

/**
 * Writes trains that left before `now_ns`, or at that time for good, to `trains` (room for `n_trains`, at
 * least 1), and the handles of their packets, one train behind the other, to `handles` (room for
 * `n_handles`, at least SLIP_BURST). Returns how many trains, 0 when there is no more, or a negative code.
 * Time passes to `now_ns`: a packet that is pushed with an earlier time later on counts as one that arrives
 * at `now_ns`. An earlier time than before asks for what has left already. Whoever polls a time after
 * SLIP_LAST has all that was pushed, and can push no more.
 */
int32_t slip_reframe_poll(struct slip_reframe *reframe,
                          uint64_t now_ns,
                          struct slip_train *trains,
                          uint32_t n_trains,
                          uint32_t *handles,
                          uint32_t n_handles);

/**
 * The same without a copy: writes trains that left before `now_ns`, or at that time for good, to `trains`
 * (room for `n_trains`, at least 1), and to `handles` where the handles of their packets stand, one train
 * behind the other. They stand there until the next call with this reframer. Returns how many trains, 0 when
 * there is no more, or a negative code.
 */
int32_t slip_reframe_poll_lent(struct slip_reframe *reframe,
                               uint64_t now_ns,
                               struct slip_train *trains,
                               uint32_t n_trains,
                               const uint32_t **handles);

/**
 * The first time in ns at which slip_reframe_poll will give something if no packet comes; SLIP_NEVER when
 * nothing is inside, and for an object that is none.
 */
uint64_t slip_reframe_next_deadline(const struct slip_reframe *reframe);

/**
 * Everything that is inside leaves now, to be polled. The reframer can go on afterwards.
 */
int slip_reframe_drain(struct slip_reframe *reframe);

/**
 * Fills in the counters, as many as `stats->size` has room for.
 */
int slip_reframe_stats(const struct slip_reframe *reframe, struct slip_stats *stats);

/**
 * Returns the text of the last error with this reframer. The text is there until the next one
 * fails.
 */
const char *slip_reframe_error(const struct slip_reframe *reframe);

/**
 * Frees a reframer, and what it holds: those handles do not come out. Nothing happens for NULL;
 * SLIP_E_OBJECT for one that was freed.
 */
int slip_reframe_free(struct slip_reframe *reframe);

/**
 * Fills in what is usual: 1 MiB of "space-saving" with keys of 4 bytes, an aggregator in front. `size` is
 * sizeof(slip_sketch_config).
 */
int slip_sketch_config_init(struct slip_sketch_config *config, size_t size);

/**
 * Makes a sketch. `config` is NULL for what is usual. Where a setting can't be had, or the memory that it
 * takes, NULL is returned, and `error`, a buffer of `error_size` bytes (NULL where there is none), says why.
 */
struct slip_sketch *slip_sketch_new(const struct slip_sketch_config *config, char *error, size_t error_size);

/**
 * Adds `n` keys, which stand at `keys` one behind the other, with their weights (packets or bytes); NULL:
 * each counts 1.
 */
int slip_sketch_add_burst(struct slip_sketch *sketch,
                          const uint8_t *keys,
                          const uint32_t *weights,
                          uint32_t n);

/**
 * Estimates the weight of a key.
 */
int slip_sketch_estimate(struct slip_sketch *sketch, const uint8_t *key, struct slip_estimate *estimate);

/**
 * Writes the heaviest keys of at least `threshold`, the heaviest first, to `heavy`, which has room for `n`.
 * Returns how many, or a negative code.
 */
int32_t slip_sketch_top(struct slip_sketch *sketch, uint64_t threshold, struct slip_heavy *heavy, uint32_t n);

/**
 * Says that answers are worse than the documentation of the sketch's kind states: a table is full, or
 * counters are. 1: they are; 0: they aren't; or a negative code.
 */
int slip_sketch_is_saturated(struct slip_sketch *sketch);

/**
 * Writes the sources with the most distinct counterparts, at least `threshold` of them, the first the one
 * with most, to `heavy`, which has room for `n`. The source is the first `source_length` bytes of a key, the
 * counterpart the others. Returns how many, or a negative code. Kinds: "two-level" (with the source_length
 * that it was made with), "flow-radar", "exact".
 */
int32_t slip_sketch_spreaders(struct slip_sketch *sketch,
                              uint32_t source_length,
                              uint64_t threshold,
                              struct slip_heavy *heavy,
                              uint32_t n);

/**
 * Tells how many distinct keys came. Kinds: "linear-counting", "fm", "exaloglog", "exaloglog-hip",
 * "univmon", "flow-radar", "mrac", "exact". SLIP_E_UNSUPPORTED also where it is saturated, as
 * slip_sketch_error then says.
 */
int slip_sketch_cardinality(struct slip_sketch *sketch, struct slip_figure *figure);

/**
 * Tells the entropy of the sizes of keys, in bits. Kinds: "univmon", "flow-radar", "exact".
 */
int slip_sketch_entropy(struct slip_sketch *sketch, struct slip_figure *figure);

/**
 * Tells the weight that the share `q` of all weights is no more than, 0 to 1. Kind: "ddsketch", each of
 * whose weights is a value by itself, so that it has no aggregator in front. SLIP_E_ARGUMENT where there is
 * no value yet.
 */
int slip_sketch_quantile(struct slip_sketch *sketch, double q, struct slip_figure *figure);

/**
 * Writes how many keys have which size, in ascending order of sizes, to `counts`, which has room for `n`.
 * Returns how many it wrote, or a negative code. Kinds: "mrac", "flow-radar", "exact".
 */
int32_t slip_sketch_distribution(struct slip_sketch *sketch, struct slip_size_count *counts, uint32_t n);

/**
 * Adds what `from` has seen to `sketch`, and empties `from`. Both must be of one kind, size, seed and length
 * of keys. Where they can't be added up, nothing changes in either. After SLIP_E_INTERNAL what was under way
 * is not undone: both answer nothing but that from then on.
 */
int slip_sketch_merge(struct slip_sketch *sketch, struct slip_sketch *from);

/**
 * Returns the text of the last error with this sketch. The text is there until the next one
 * fails.
 */
const char *slip_sketch_error(const struct slip_sketch *sketch);

/**
 * Frees a sketch. Nothing happens for NULL; SLIP_E_OBJECT for one that was freed.
 */
int slip_sketch_free(struct slip_sketch *sketch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLIPSTREAM_H */
