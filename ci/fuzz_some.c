/* A small driver in the place of libFuzzer, for the stable compiler: it gives a fuzz target some inputs.
 *
 *     TARGET COUNT [FILE]...
 *
 * The FILEs come first. Then COUNT inputs are made up from a fixed seed, of up to 600 bytes; every other one
 * is a FILE of which some bytes are others. Where the target fails, the input is told in hexadecimal. No
 * feedback leads it anywhere: `make fuzz` searches, this sees that a target runs. */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 1 << 16, TOLD = 4096 };

static uint8_t input[LONGEST];
static size_t size;
static uint64_t state = 0x9e3779b97f4a7c15;

/* xorshift64*, whose upper bits are good. */
static uint32_t drawn(uint32_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)(((state * 0x2545f4914f6cdd1d) >> 32) % below);
}

static void told(int number)
{
    static const char digits[] = "0123456789abcdef";
    char text[2 * TOLD + 1];
    size_t n = 0;
    for (size_t i = 0; i < size && i < TOLD; i++) {
        text[n++] = digits[input[i] >> 4];
        text[n++] = digits[input[i] & 15];
    }
    text[n++] = '\n';
    static const char what[] = "\nthe input (xxd -r -p makes a file of it for cargo fuzz run TARGET FILE):\n";
    if (write(2, what, sizeof what - 1) < 0 || write(2, text, n) < 0)
        _exit(3);
    signal(number, SIG_DFL);
    raise(number);
}

static int read_file(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (!file) {
        perror(name);
        return -1;
    }
    size = fread(input, 1, sizeof input, file);
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s COUNT [FILE]...\n", argv[0]);
        return 2;
    }
    int count = atoi(argv[1]), files = argc - 2;
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    LLVMFuzzerInitialize(&argc, &argv);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], told);
    for (int i = 0; i < files; i++) {
        if (read_file(argv[2 + i]))
            return 2;
        LLVMFuzzerTestOneInput(input, size);
    }
    for (int i = 0; i < count; i++) {
        if (files && i % 2) {
            if (read_file(argv[2 + (int)drawn((uint32_t)files)]))
                return 2;
            for (uint32_t n = 1 + drawn(4); size && n; n--)
                input[drawn((uint32_t)size)] = (uint8_t)drawn(256);
            if (!drawn(4))
                size = drawn((uint32_t)size + 1);
        } else {
            /* Short inputs are frequent; a third has few different bytes, as headers and texts do. */
            size = drawn(1 + drawn(600));
            uint32_t kinds = drawn(3) ? 256 : 1 + drawn(16), first = drawn(256);
            for (size_t at = 0; at < size; at++)
                input[at] = (uint8_t)(first + drawn(kinds));
        }
        LLVMFuzzerTestOneInput(input, size);
    }
    printf("%d inputs and %d files\n", count, files);
    return 0;
}
