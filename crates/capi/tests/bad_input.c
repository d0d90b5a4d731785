/* Every mistake of a C program becomes a code and a text: NULL, sizes of 0, time that runs backwards, objects that were freed,
 * buffers that are too small. Run it with a sanitizer; it says how many checks passed. */
#include <slipstream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void check_at(int line, const char *what, int holds)
{
    passed += holds;
    failed += !holds;
    if (!holds)
        printf("line %d: %s\n", line, what);
}
#define CHECK(what) check_at(__LINE__, #what, (what))
#define ERROR_HAS(object, text) CHECK(strstr(slip_reframe_error(object), text) != NULL)

static uint8_t packet[60] = {[12] = 8, 0, 0x45, [17] = 46, [22] = 64, 17, [26] = 10, 0, 0, 1, 10, 0, 0, 2};

static void settings(void)
{
    char why[256] = "";
    slip_reframe_config c;
    CHECK(slip_reframe_config_init(NULL, sizeof c) == SLIP_E_NULL);
    CHECK(slip_reframe_config_init(&c, 0) == SLIP_E_ARGUMENT);
    CHECK(slip_reframe_config_init(&c, SIZE_MAX) == SLIP_E_ARGUMENT);
#define REFUSED(change, text)                                       \
    do {                                                            \
        CHECK(slip_reframe_config_init(&c, sizeof c) == SLIP_OK);   \
        change;                                                     \
        CHECK(slip_reframe_new(&c, why, sizeof why) == NULL);       \
        CHECK(strstr(why, text) != NULL);                           \
        CHECK(slip_reframe_new(&c, NULL, 0) == NULL);               \
    } while (0)
    REFUSED(c.size = 0, "size of the settings is 0");
    REFUSED(c.size = SIZE_MAX, "more than any version has");
    REFUSED(c.hold_ns = UINT64_MAX, "is too long");
    REFUSED(c.burst = 0, "burst = 0 packets is out of range; 1 to 256");
    REFUSED(c.burst = 65537, "burst = 65537 packets is out of range; 1 to 256");
    REFUSED(c.hold_ns = 4000000001, "hold = 4000000001ns is too long; up to 4s");
    REFUSED(c.size = 9, "size of the settings is 9 bytes, which no version has");
    REFUSED(c.size = offsetof(slip_reframe_config, capacity) + 2, "which no version has");
    CHECK(slip_reframe_config_init(&c, 9) == SLIP_E_ARGUMENT);
    REFUSED(c.capacity = 0, "capacity = 0");
    REFUSED(c.capacity = UINT32_MAX, "capacity");
    REFUSED(c.capacity_bytes = 0, "capacity of 0 bytes");
    REFUSED(c.flows = 0, "flows = 0");
    REFUSED(c.policy = 3, "policy = 3");
    REFUSED(c.admit = 2, "admit = 2");
    REFUSED(c.inner = 2, "inner = 2");
    REFUSED(c.link_type = 65536, "link_type = 65536");
    REFUSED(c.reserved = 1, "reserved");
    REFUSED(c.bypass = "tcp sny", "did you mean `syn`?");
    REFUSED(c.bypass = "", "rule");
    REFUSED(c.bypass = "\xff", "UTF-8");
    REFUSED(memset(why, 1, sizeof why); c.burst = 0, "burst");
    /* A text is cut to its buffer, and ends. */
    char small[8];
    c.burst = 0;
    CHECK(slip_reframe_new(&c, small, sizeof small) == NULL && strlen(small) == 7);
    CHECK(slip_reframe_new(&c, small, 1) == NULL && small[0] == 0);
    /* Settings of an older version, and of a newer one that says nothing new. */
    size_t old = offsetof(slip_reframe_config, seed);
    slip_reframe_config *exact = malloc(old);
    CHECK(slip_reframe_config_init(exact, old) == SLIP_OK && exact->size == old && exact->hold_ns == 64000);
    slip_reframe *r = slip_reframe_new(exact, why, sizeof why);
    CHECK(r != NULL && slip_reframe_free(r) == SLIP_OK);
    free(exact);
    struct { slip_reframe_config c; uint64_t later; } newer;
    CHECK(slip_reframe_config_init(&newer.c, sizeof newer) == SLIP_OK && newer.later == 0);
    CHECK(slip_reframe_free(slip_reframe_new(&newer.c, why, sizeof why)) == SLIP_OK);
    newer.later = 1;
    CHECK(slip_reframe_new(&newer.c, why, sizeof why) == NULL && strstr(why, "later version") != NULL);
}

static void calls(void)
{
    slip_train t[4];
    uint32_t h[SLIP_BURST];
    const uint32_t *lent = NULL;
    slip_packet p[SLIP_BURST + 1] = {{.data = packet, .captured = 60, .handle = 7}};
    slip_stats s = {.size = sizeof s};
    slip_key key = {.ip_version = 5};
    slip_reframe *r = slip_reframe_new(NULL, NULL, 0);
    CHECK(r != NULL);

    CHECK(slip_reframe_push(NULL, 0, 0, packet, 60) == SLIP_E_NULL);
    CHECK(slip_reframe_push(r, 0, 0, NULL, 60) == SLIP_E_NULL);
    CHECK(slip_reframe_push(r, 0, 0, NULL, 0) == SLIP_OK);
    CHECK(slip_reframe_push_burst(NULL, p, 1, 0) == SLIP_E_NULL);
    CHECK(slip_reframe_push_burst(r, NULL, 1, 0) == SLIP_E_NULL);
    CHECK(slip_reframe_push_burst(r, NULL, 0, 0) == SLIP_OK);
    CHECK(slip_reframe_push_burst(r, (slip_packet *)((char *)p + 1), 1, 0) == SLIP_E_ARGUMENT);
    CHECK(slip_reframe_push_burst(r, p, SLIP_BURST + 1, 0) == SLIP_E_TOO_MANY);
    CHECK(slip_reframe_push_burst(r, p, UINT32_MAX, 0) == SLIP_E_TOO_MANY);
    ERROR_HAS(r, "at most 256");
    p[1] = (slip_packet){.captured = 1};
    CHECK(slip_reframe_push_burst(r, p, 2, 0) == SLIP_E_NULL);
    ERROR_HAS(r, "packet 1 of the burst: data is NULL");
    p[1] = (slip_packet){.key = &key};
    CHECK(slip_reframe_push_burst(r, p, 2, 0) == SLIP_E_ARGUMENT);
    ERROR_HAS(r, "packet 1 of the burst: its key is none");
    key = (slip_key){.ip_version = 4, .vlan = 4096};
    CHECK(slip_reframe_push_burst(r, p, 2, 0) == SLIP_E_ARGUMENT);
    key = (slip_key){.ip_version = 4, .reserved = {0, 0, 9}};
    CHECK(slip_reframe_push_burst(r, p, 2, 0) == SLIP_E_ARGUMENT);
    ERROR_HAS(r, "packet 1 of the burst: reserved of its key is not 0");
    p[1] = (slip_packet){.data = packet, .captured = 60, .reserved = 9};
    CHECK(slip_reframe_push_burst(r, p, 2, 0) == SLIP_E_ARGUMENT);
    ERROR_HAS(r, "packet 1 of the burst: reserved is not 0");
    CHECK(slip_reframe_push_burst(r, p + 1, 1, 0) == SLIP_E_ARGUMENT);
    CHECK(slip_reframe_stats(r, &s) == SLIP_OK && s.packets_in == 1);

    CHECK(slip_reframe_push_burst(r, p, 1, 100) == SLIP_OK);
    CHECK(slip_reframe_push_burst(r, p, 1, 99) == SLIP_E_TIME);
    ERROR_HAS(r, "times must not run backwards");
    CHECK(slip_reframe_push(r, 99, 8, packet, 60) == SLIP_E_TIME);

    CHECK(slip_reframe_poll(NULL, 0, t, 4, h, SLIP_BURST) == SLIP_E_NULL);
    CHECK(slip_reframe_poll(r, 0, NULL, 4, h, SLIP_BURST) == SLIP_E_NULL);
    CHECK(slip_reframe_poll(r, 0, t, 4, NULL, SLIP_BURST) == SLIP_E_NULL);
    CHECK(slip_reframe_poll(r, 0, t, 0, h, SLIP_BURST) == SLIP_E_BUFFER);
    CHECK(slip_reframe_poll(r, 0, t, 4, h, SLIP_BURST - 1) == SLIP_E_BUFFER);
    ERROR_HAS(r, "too small");
    CHECK(slip_reframe_poll(r, 0, (slip_train *)((char *)t + 1), 3, h, SLIP_BURST) == SLIP_E_ARGUMENT);
    CHECK(slip_reframe_poll(r, 0, (slip_train *)(h + 2), 4, h, SLIP_BURST) == SLIP_E_ARGUMENT);
    ERROR_HAS(r, "overlap");
    CHECK(slip_reframe_poll(r, 0, t, 4, h, SLIP_BURST) == 1 && t[0].flow == SLIP_NO_FLOW && h[0] == 0);
    CHECK(slip_reframe_next_deadline(r) == 64101);
    CHECK(slip_reframe_poll(r, 64100, t, 4, h, SLIP_BURST) == 0);
    CHECK(slip_reframe_poll_lent(NULL, 0, t, 4, &lent) == SLIP_E_NULL);
    CHECK(slip_reframe_poll_lent(r, 0, NULL, 4, &lent) == SLIP_E_NULL);
    CHECK(slip_reframe_poll_lent(r, 0, t, 4, NULL) == SLIP_E_NULL);
    CHECK(slip_reframe_poll_lent(r, 0, t, 0, &lent) == SLIP_E_BUFFER);
    CHECK(slip_reframe_poll_lent(r, 0, (slip_train *)((char *)t + 1), 3, &lent) == SLIP_E_ARGUMENT);
    CHECK(slip_reframe_poll_lent(r, 64100, t, 4, &lent) == 0);
    CHECK(slip_reframe_poll_lent(r, 64101, t, 4, &lent) == 1);
    CHECK(t[0].release_ns == 64100 && t[0].count == 1 && lent[0] == 7);
    CHECK(slip_reframe_poll(r, 64101, t, 4, h, SLIP_BURST) == 0);
    CHECK(slip_reframe_next_deadline(r) == SLIP_NEVER && slip_reframe_next_deadline(NULL) == SLIP_NEVER);

    CHECK(slip_reframe_stats(NULL, &s) == SLIP_E_NULL && slip_reframe_stats(r, NULL) == SLIP_E_NULL);
    s.size = 0;
    CHECK(slip_reframe_stats(r, &s) == SLIP_E_BUFFER);
    ERROR_HAS(r, "sizeof(slip_stats)");
    s.size = 2 * sizeof(size_t) - 4;
    s.packets_in = 99;
    CHECK(slip_reframe_stats(r, &s) == SLIP_E_BUFFER && s.packets_in == 99);
    size_t *shorter = malloc(2 * sizeof(size_t));
    shorter[0] = 2 * sizeof(size_t);
    CHECK(slip_reframe_stats(r, (slip_stats *)shorter) == SLIP_OK && shorter[1] == 2);
    free(shorter);

    /* The end of time. */
    slip_reframe *last = slip_reframe_new(NULL, NULL, 0);
    CHECK(slip_reframe_push(last, SLIP_LAST + 1, 1, packet, 60) == SLIP_E_ARGUMENT);
    CHECK(strstr(slip_reframe_error(last), "is the latest time") != NULL);
    CHECK(slip_reframe_push(last, SLIP_LAST, 1, packet, 60) == SLIP_OK);
    CHECK(slip_reframe_next_deadline(last) == SLIP_LAST + 64001);
    CHECK(slip_reframe_poll(last, SLIP_LAST + 64001, t, 4, h, SLIP_BURST) == 1 && h[0] == 1);
    CHECK(slip_reframe_push(last, SLIP_LAST, 1, packet, 60) == SLIP_E_ARGUMENT);
    CHECK(slip_reframe_free(last) == SLIP_OK);

    /* Nobody polls. */
    int e, n = 0;
    while ((e = slip_reframe_push(r, 70000, n, NULL, 0)) == SLIP_OK)
        n++;
    CHECK(e == SLIP_E_UNPOLLED && n == 2 * 8192 + 256);
    ERROR_HAS(r, "poll them");
    CHECK(slip_reframe_drain(NULL) == SLIP_E_NULL && slip_reframe_drain(r) == SLIP_OK);

    /* After the end. */
    CHECK(slip_reframe_free(NULL) == SLIP_OK);
    CHECK(slip_reframe_free(r) == SLIP_OK);
    CHECK(slip_reframe_free(r) == SLIP_E_OBJECT);
    CHECK(slip_reframe_push_burst(r, p, 1, 70000) == SLIP_E_OBJECT);
    CHECK(slip_reframe_poll(r, 0, t, 4, h, SLIP_BURST) == SLIP_E_OBJECT);
    CHECK(slip_reframe_drain(r) == SLIP_E_OBJECT && slip_reframe_stats(r, &s) == SLIP_E_OBJECT);
    CHECK(slip_reframe_next_deadline(r) == SLIP_NEVER);
    ERROR_HAS(r, "was freed already");
    for (int i = 0; i < 1000; i++) {
        slip_reframe_config c;
        slip_reframe_config_init(&c, sizeof c);
        c.capacity = 1, c.flows = 1;
        slip_reframe *other = slip_reframe_new(&c, NULL, 0);
        if (other == r || slip_reframe_free(other) != SLIP_OK || slip_reframe_free(r) != SLIP_E_OBJECT)
            CHECK(!"a reframer that was freed is told from those that came later");
    }
    r = slip_reframe_new(NULL, NULL, 0);
    CHECK(slip_sketch_free((slip_sketch *)(void *)r) == SLIP_E_OBJECT && slip_reframe_free(r) == SLIP_OK);
}

static void sketches(void)
{
    char why[256];
    slip_sketch_config c;
    CHECK(slip_sketch_config_init(NULL, sizeof c) == SLIP_E_NULL);
    CHECK(slip_sketch_config_init(&c, sizeof c) == SLIP_OK);
    c.kind = "no-such", CHECK(slip_sketch_new(&c, why, sizeof why) == NULL && strstr(why, "there are count-min"));
    c.kind = NULL, c.key_length = 5, CHECK(slip_sketch_new(&c, why, sizeof why) == NULL && strstr(why, "4, 8, 13 and 16"));
    c.key_length = 4, c.memory = 0, CHECK(slip_sketch_new(&c, why, sizeof why) == NULL && strstr(why, "too few"));
    c.memory = 1ull << 62, CHECK(slip_sketch_new(&c, why, sizeof why) == NULL && strstr(why, "64 GiB at most"));
    c.size = 4097, CHECK(slip_sketch_new(&c, why, sizeof why) == NULL && strstr(why, "more than any version"));
    c.size = sizeof c;
    c.memory = 1 << 16, c.seed = 1;
    slip_sketch *a = slip_sketch_new(&c, why, sizeof why), *b = slip_sketch_new(&c, why, sizeof why);
    c.key_length = 8;
    slip_sketch *longer = slip_sketch_new(&c, why, sizeof why);
    c.kind = "linear-counting";
    slip_sketch *counting = slip_sketch_new(&c, why, sizeof why);
    uint8_t keys[100][4];
    uint32_t weights[100];
    for (int i = 0; i < 100; i++)
        memset(keys[i], i % 10, 4), weights[i] = i % 10;
    CHECK(slip_sketch_add_burst(NULL, keys[0], NULL, 1) == SLIP_E_NULL);
    CHECK(slip_sketch_add_burst(a, NULL, NULL, 1) == SLIP_E_NULL);
    CHECK(slip_sketch_add_burst(a, NULL, NULL, 0) == SLIP_OK);
    CHECK(slip_sketch_add_burst(a, keys[0], (uint32_t *)((char *)weights + 1), 1) == SLIP_E_ARGUMENT);
    CHECK(slip_sketch_add_burst(a, keys[0], weights, 100) == SLIP_OK);
    CHECK(slip_sketch_add_burst(b, keys[0], NULL, 100) == SLIP_OK);
    slip_estimate estimate;
    CHECK(slip_sketch_estimate(a, NULL, &estimate) == SLIP_E_NULL && slip_sketch_estimate(a, keys[0], NULL) == SLIP_E_NULL);
    CHECK(slip_sketch_estimate(a, keys[9], &estimate) == SLIP_OK && estimate.estimate == 90);
    slip_heavy heavy[3];
    CHECK(slip_sketch_top(a, 1, NULL, 3) == SLIP_E_NULL && slip_sketch_top(a, 1, heavy, 0) == SLIP_E_BUFFER);
    CHECK(slip_sketch_top(a, 1, heavy, 3) == 3 && heavy[0].size.estimate == 90 && heavy[0].key[3] == 9 && heavy[0].key[4] == 0);
    CHECK(slip_sketch_merge(a, a) == SLIP_E_ARGUMENT && slip_sketch_merge(a, NULL) == SLIP_E_NULL);
    CHECK(slip_sketch_merge(NULL, NULL) == SLIP_E_NULL && slip_sketch_merge(a, longer) == SLIP_E_UNSUPPORTED);
    CHECK(strstr(slip_sketch_error(a), "different lengths") != NULL);
    CHECK(slip_sketch_merge(longer, counting) == SLIP_E_UNSUPPORTED);
    CHECK(slip_sketch_top(counting, 1, heavy, 3) == SLIP_E_UNSUPPORTED);
    CHECK(slip_sketch_merge(a, b) == SLIP_OK);
    CHECK(slip_sketch_estimate(a, keys[9], &estimate) == SLIP_OK && estimate.estimate == 100);
    CHECK(slip_sketch_is_saturated(NULL) == SLIP_E_NULL && slip_sketch_is_saturated(a) == 0);
    slip_figure figure;
    slip_size_count counts[4];
    CHECK(slip_sketch_cardinality(a, &figure) == SLIP_E_UNSUPPORTED && slip_sketch_cardinality(counting, NULL) == SLIP_E_NULL);
    CHECK(slip_sketch_cardinality(NULL, &figure) == SLIP_E_NULL && slip_sketch_entropy(counting, &figure) == SLIP_E_UNSUPPORTED);
    CHECK(slip_sketch_quantile(a, 0.5, &figure) == SLIP_E_UNSUPPORTED && slip_sketch_quantile(a, 1.5, &figure) == SLIP_E_ARGUMENT);
    CHECK(slip_sketch_quantile(a, 0.0 / 0.0, &figure) == SLIP_E_ARGUMENT && strstr(slip_sketch_error(a), "0 to 1"));
    CHECK(slip_sketch_distribution(a, NULL, 4) == SLIP_E_NULL && slip_sketch_distribution(a, counts, 0) == SLIP_E_BUFFER);
    CHECK(slip_sketch_spreaders(a, 2, 1, NULL, 3) == SLIP_E_NULL && slip_sketch_spreaders(a, 2, 1, heavy, 0) == SLIP_E_BUFFER);
    CHECK(slip_sketch_spreaders(a, 0, 1, heavy, 3) == SLIP_E_ARGUMENT && slip_sketch_spreaders(a, 4, 1, heavy, 3) == SLIP_E_ARGUMENT);
    CHECK(strstr(slip_sketch_error(a), "1 to 3") != NULL);
    CHECK(slip_sketch_free(b) == SLIP_OK && slip_sketch_free(b) == SLIP_E_OBJECT && slip_sketch_free(NULL) == SLIP_OK);
    CHECK(slip_sketch_merge(a, b) == SLIP_E_OBJECT && slip_sketch_add_burst(b, keys[0], NULL, 1) == SLIP_E_OBJECT);
    CHECK(slip_sketch_free(a) == SLIP_OK && slip_sketch_free(longer) == SLIP_OK && slip_sketch_free(counting) == SLIP_OK);
}

/* Each kind answers what it is for. */
static void answers(void)
{
    char why[256];
    slip_sketch_config c;
    slip_figure figure;
    slip_size_count counts[4];
    slip_heavy heavy[4];
    /* A hundred keys of eight bytes: source n % 10 with ten counterparts each; key n is there n % 3 + 1 times. */
    uint8_t keys[200][8];
    int n = 0;
    for (int i = 0; i < 100; i++)
        for (int times = 0; times <= i % 3; times++, n++)
            memset(keys[n], i % 10, 4), memset(keys[n] + 4, i / 10, 4);
    CHECK(n == 199);
    for (int aggregate = 0; aggregate < 2; aggregate++) {
        static const char *const countings[] = {"linear-counting", "fm", "exaloglog", "exaloglog-hip", "exact"};
        CHECK(slip_sketch_config_init(&c, sizeof c) == SLIP_OK);
        c.key_length = 8, c.seed = 3, c.aggregate = (uint32_t)aggregate;
        for (size_t i = 0; i < sizeof countings / sizeof *countings; i++) {
            c.kind = countings[i];
            slip_sketch *s = slip_sketch_new(&c, why, sizeof why);
            CHECK(slip_sketch_cardinality(s, &figure) == SLIP_OK && figure.estimate < 1.0);
            CHECK(slip_sketch_add_burst(s, keys[0], NULL, (uint32_t)n) == SLIP_OK);
            CHECK(slip_sketch_cardinality(s, &figure) == SLIP_OK);
            CHECK(figure.estimate > 70 && figure.estimate < 130 && figure.lower <= 100 && figure.upper >= 100);
            CHECK(slip_sketch_free(s) == SLIP_OK);
        }
        c.kind = "exact";
        slip_sketch *s = slip_sketch_new(&c, why, sizeof why);
        CHECK(slip_sketch_add_burst(s, keys[0], NULL, (uint32_t)n) == SLIP_OK);
        /* Sum of -p log2 p: 34 keys with 1 of 199, 33 with 2, 33 with 3. */
        CHECK(slip_sketch_entropy(s, &figure) == SLIP_OK && figure.estimate > 6.51 && figure.estimate < 6.52);
        CHECK(slip_sketch_distribution(s, counts, 4) == 3 && counts[0].size == 1 && counts[0].keys == 34 && counts[2].keys == 33);
        CHECK(slip_sketch_distribution(s, counts, 2) == 2 && counts[1].size == 2);
        CHECK(slip_sketch_spreaders(s, 4, 10, heavy, 4) == 4 && heavy[0].size.estimate == 10 && heavy[0].key[4] == 0);
        CHECK(slip_sketch_spreaders(s, 4, 11, heavy, 4) == 0);
        CHECK(slip_sketch_free(s) == SLIP_OK);
        c.kind = "mrac";
        s = slip_sketch_new(&c, why, sizeof why);
        CHECK(slip_sketch_add_burst(s, keys[0], NULL, (uint32_t)n) == SLIP_OK);
        CHECK(slip_sketch_distribution(s, counts, 4) == 3 && counts[0].size == 1 && counts[0].keys > 20 && counts[0].keys < 50);
        CHECK(slip_sketch_free(s) == SLIP_OK);
        c.kind = "two-level", c.source_length = 4, c.memory = 1 << 22;
        s = slip_sketch_new(&c, why, sizeof why);
        CHECK(slip_sketch_add_burst(s, keys[0], NULL, (uint32_t)n) == SLIP_OK);
        int found = slip_sketch_spreaders(s, 4, 5, heavy, 4);
        CHECK(found == 4 && heavy[0].size.estimate >= 5 && heavy[0].key[7] == 0);
        CHECK(slip_sketch_free(s) == SLIP_OK);
    }
    CHECK(slip_sketch_config_init(&c, sizeof c) == SLIP_OK);
    c.kind = "ddsketch", c.aggregate = 0;
    slip_sketch *s = slip_sketch_new(&c, why, sizeof why);
    CHECK(slip_sketch_quantile(s, 0.5, &figure) == SLIP_E_ARGUMENT && strstr(slip_sketch_error(s), "no value"));
    uint32_t values[101];
    uint8_t short_keys[101][4] = {{0}};
    for (uint32_t i = 0; i <= 100; i++)
        values[i] = 1000 + 10 * i;
    CHECK(slip_sketch_add_burst(s, short_keys[0], values, 101) == SLIP_OK);
    CHECK(slip_sketch_quantile(s, 0.5, &figure) == SLIP_OK && figure.lower <= 1500 && figure.upper >= 1500);
    CHECK(figure.estimate > 1450 && figure.estimate < 1550);
    CHECK(slip_sketch_quantile(s, 1, &figure) == SLIP_OK && figure.lower <= 2000 && figure.upper >= 2000);
    CHECK(slip_sketch_free(s) == SLIP_OK);
}

/* A weight beyond counters of 32 bits is in the list for a threshold beyond them, within bounds that hold, and
   what made them wide is told. */
static void beyond_a_counter(void)
{
    const char *const kinds[] = {"count-min", "rev-sketch"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char why[256];
        slip_sketch_config c;
        CHECK(slip_sketch_config_init(&c, sizeof c) == SLIP_OK);
        c.kind = kinds[i], c.keep = 8, c.seed = 1;
        slip_sketch *s = slip_sketch_new(&c, why, sizeof why);
        const uint8_t keys[5][4] = {{1}, {1}, {1}, {2}, {2}};
        const uint32_t weights[5] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 5};
        slip_heavy heavy[3];
        CHECK(slip_sketch_add_burst(s, keys[0], weights, 1) == SLIP_OK && slip_sketch_is_saturated(s) == 1);
        CHECK(slip_sketch_add_burst(s, keys[1], weights + 1, 4) == SLIP_OK && slip_sketch_is_saturated(s) == 1);
        CHECK(slip_sketch_top(s, (uint64_t)UINT32_MAX + 1, heavy, 3) == 2);
        for (int n = 0; n < 2; n++) {
            uint64_t weight = heavy[n].key[0] == 1 ? 3 * (uint64_t)UINT32_MAX : (uint64_t)UINT32_MAX + 5;
            CHECK(heavy[n].size.lower <= weight && heavy[n].size.upper >= weight);
        }
        CHECK(slip_sketch_free(s) == SLIP_OK && slip_sketch_is_saturated(s) == SLIP_E_OBJECT);
    }
}

int main(void)
{
    answers();
    beyond_a_counter();
    settings();
    calls();
    sketches();
    for (int code = 2; code >= -12; code--)
        CHECK(strlen(slip_error_text(code)) > 5);
    CHECK(strchr(slip_version(), '.') != NULL);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
