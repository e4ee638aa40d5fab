/*
 * A plugin of QEMU's TCG. It counts the instructions that user code and the kernel executed, the interrupts that arrived, and
 * the misses of modelled caches, on all virtual cores but the one that executes MARK, and writes the counts as a line each time
 * one does.
 *
 * QEMU's packages have no header, so the few prototypes of version 7 of the API are here. Compiled by tests/guest/prepare.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_register;
struct reg_descriptor {
    struct qemu_plugin_register *handle;
    const char *name, *feature;
    bool is_readonly;
};
/* GArray and GByteArray of glib, which QEMU is linked with. */
struct array {
    void *data;
    unsigned length;
};
struct mem_value {
    int type;
    union {
        uint64_t u64;
        struct {
            uint64_t low, high;
        } u128;
    };
};
typedef void (*core_cb)(unsigned core, void *data);
void qemu_plugin_register_vcpu_init_cb(uint64_t id, core_cb, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*)(struct qemu_plugin_tb *, void *), void *data);
void qemu_plugin_register_vcpu_discon_cb(uint64_t id, int type, void (*)(unsigned, int, uint64_t, uint64_t, void *),
                                         void *data);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, core_cb, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, core_cb, int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, uint32_t, uint64_t, void *), int flags,
                                      int accesses, void *data);
struct mem_value qemu_plugin_mem_get_value(uint32_t info);
bool qemu_plugin_mem_is_store(uint32_t info);
unsigned qemu_plugin_mem_size_shift(uint32_t info);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *into, size_t length);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
struct array *qemu_plugin_get_registers(void);
bool qemu_plugin_read_register(struct qemu_plugin_register *, struct array *into);
struct array *g_byte_array_new(void);
enum { NO_REGISTERS = 0, READS_REGISTERS = 1, INTERRUPT = 1, READS_AND_WRITES = 3 };

/* The instruction that mark.S executes: a NOP whose unused address nobody else writes. */
static const uint8_t MARK[] = {0x0f, 0x1f, 0x84, 0x00, 0x4c, 0x75, 0x6c, 0x6c};
/* How the kernel (7.3) begins a softirq: addq $SOFTIRQ_OFFSET, %gs:__preempt_count(%rip), around its displacement. */
static const uint8_t ADD[] = {0x65, 0x48, 0x81, 0x05}, SOFTIRQ_OFFSET[] = {0x00, 0x01, 0x00, 0x00};
/* Bits of that count: interrupts and NMIs, and a softirq that runs (not one that is only kept away). */
enum { IN_IRQ = 0xff000000, IN_SOFTIRQ = 0x100 };

EXPORT int qemu_plugin_version = 7;

/* The caches are those of the paper's processor, a Xeon E5-2680, in lines of 64 bytes; of the 20 MiB that its eight cores
 * share, an eighth, as one worker serves here and eight did there. LRU, no prefetching. Addresses are virtual: nearly all
 * code is the kernel's or one process's. */
enum { LINE = 6, LEVELS = 4, L1I = 0, L1D, L2, LLC };
static const struct {
    unsigned sets, ways;
} SHAPES[LEVELS] = {[L1I] = {64, 8}, [L1D] = {64, 8}, [L2] = {512, 8}, [LLC] = {2048, 20}};

enum { USER, KERNEL, SOFTIRQ, IRQ, CONTEXTS };

struct core {
    uint64_t per_cpu_data;
    uint64_t preempt_count;
    /* Lines of each set, the last used first. */
    uint64_t *lines[LLC];
};
static struct core cores[16];
static uint64_t *last_level;

static struct qemu_plugin_register *gs_base, *kernel_gs_base;
static struct array *value;
static FILE *out;
/* The address of the per-CPU data of the core that marks; 0 before the first mark. */
static uint64_t marking;
/* Where __preempt_count is in per-CPU data; 0 until the kernel's softirqs were translated. */
static uint64_t preempt_count;
/* The core that executes; NULL if it is the one that marks. */
static struct core *here;
static uint64_t executed[CONTEXTS], interrupts, misses[LEVELS];

/* What is known of a block when it is translated. */
struct block {
    uint64_t first_line, last_line;
    unsigned instructions;
    bool is_kernel;
};

/* The kernel's half of the addresses has the highest bit. */
static bool is_kernel(uint64_t address) { return address >> 63; }

static void *zeroed(size_t count) {
    void *all = calloc(count, sizeof(uint64_t));
    if (!all) abort();
    return all;
}

/* A core is told by the address of its per-CPU data, which is in GS or saved for it. Its number won't do: where cores take
 * turns on one thread, QEMU compiles the number of the core that translates a block first into it. */
static void find_core(bool in_kernel) {
    struct qemu_plugin_register *both[] = {in_kernel ? gs_base : kernel_gs_base, in_kernel ? kernel_gs_base : gs_base};
    for (int i = 0; i < 2; i++) {
        value->length = 0;
        uint64_t address = 0;
        if (qemu_plugin_read_register(both[i], value)) memcpy(&address, value->data, sizeof address);
        if (!is_kernel(address)) continue;
        if (here && here->per_cpu_data == address) return;
        here = NULL;
        if (address == marking) return;
        for (here = cores; here->per_cpu_data && here->per_cpu_data != address; here++)
            ;
        if (here->per_cpu_data) return;
        here->per_cpu_data = address;
        for (int level = 0; level < LLC; level++) here->lines[level] = zeroed(SHAPES[level].sets * SHAPES[level].ways);
        return;
    }
}

/* Whether a cache has the line; it has now, as the last used one. */
static bool hits(uint64_t *lines, int level, uint64_t line) {
    unsigned ways = SHAPES[level].ways, way = 0;
    uint64_t *set = lines + line % SHAPES[level].sets * ways;
    while (way < ways - 1 && set[way] != line) way++;
    bool hit = set[way] == line;
    if (way) memmove(set + 1, set, way * sizeof *set);
    set[0] = line;
    misses[level] += !hit;
    return hit;
}

static void fetch(int first, uint64_t line) {
    if (!hits(here->lines[first], first, line) && !hits(here->lines[L2], L2, line)) hits(last_level, LLC, line);
}

/* A line that is written leaves the caches of the other cores. */
static void invalidate(uint64_t line) {
    for (struct core *other = cores; other->per_cpu_data; other++) {
        for (int level = L1D; other != here && level <= L2; level++) {
            uint64_t *set = other->lines[level] + line % SHAPES[level].sets * SHAPES[level].ways;
            for (unsigned way = 0; way < SHAPES[level].ways; way++)
                if (set[way] == line) set[way] = 0;
        }
    }
}

/* A block that a fault ends early is counted whole. Inline additions would be cheaper, but corrupted guests under -icount. */
static void execute(unsigned core, void *data) {
    if (!marking) return;
    const struct block *block = data;
    find_core(block->is_kernel);
    if (!here) return;
    int context = !block->is_kernel                      ? USER
                  : here->preempt_count & IN_IRQ     ? IRQ
                  : here->preempt_count & IN_SOFTIRQ ? SOFTIRQ
                                                     : KERNEL;
    executed[context] += block->instructions;
    for (uint64_t line = block->first_line; line <= block->last_line; line++) fetch(L1I, line);
}

static void accessed(unsigned core, uint32_t info, uint64_t address, void *data) {
    if (!here) return;
    bool store = qemu_plugin_mem_is_store(info);
    if (store && address == here->per_cpu_data + preempt_count)
        here->preempt_count = qemu_plugin_mem_get_value(info).u64;
    uint64_t last = (address + (1 << qemu_plugin_mem_size_shift(info)) - 1) >> LINE;
    for (uint64_t line = address >> LINE; line <= last; line++) {
        fetch(L1D, line);
        if (store) invalidate(line);
    }
}

static void mark(unsigned core, void *data) {
    if (!marking) {
        value->length = 0;
        if (qemu_plugin_read_register(kernel_gs_base, value)) memcpy(&marking, value->data, sizeof marking);
    }
    for (int context = 0; context < CONTEXTS; context++) fprintf(out, "%ju ", (uintmax_t)executed[context]);
    for (int level = 0; level < LEVELS; level++) fprintf(out, "%ju ", (uintmax_t)misses[level]);
    fprintf(out, "%ju\n", (uintmax_t)interrupts);
    fflush(out);
}

static void translated(struct qemu_plugin_tb *translation, void *data) {
    struct block *block = zeroed((sizeof *block + 7) / 8);
    block->instructions = qemu_plugin_tb_n_insns(translation);
    for (unsigned i = 0; i < block->instructions; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(translation, i);
        uint64_t address = qemu_plugin_insn_vaddr(instruction);
        if (i == 0) block->first_line = address >> LINE;
        block->last_line = (address + qemu_plugin_insn_size(instruction) - 1) >> LINE;
        block->is_kernel = is_kernel(address);
        uint8_t bytes[16];
        size_t length = qemu_plugin_insn_data(instruction, bytes, sizeof bytes);
        if (length == sizeof MARK && !memcmp(bytes, MARK, sizeof MARK))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, mark, READS_REGISTERS, NULL);
        if (!preempt_count && length == 12 && !memcmp(bytes, ADD, sizeof ADD) &&
            !memcmp(bytes + 8, SOFTIRQ_OFFSET, sizeof SOFTIRQ_OFFSET)) {
            int32_t displacement;
            memcpy(&displacement, bytes + 4, sizeof displacement);
            preempt_count = address + length + displacement;
        }
        qemu_plugin_register_vcpu_mem_cb(instruction, accessed, NO_REGISTERS, READS_AND_WRITES, NULL);
    }
    qemu_plugin_register_vcpu_tb_exec_cb(translation, execute, READS_REGISTERS, block);
}

static void interrupted(unsigned core, int type, uint64_t from, uint64_t to, void *data) {
    /* Of the core that executes, and not translated, so its number is right. Linux' core 0 marks. */
    if (core != 0) interrupts++;
}

static void started(unsigned core, void *data) {
    if (core != 0) return;
    struct array *registers = qemu_plugin_get_registers();
    for (unsigned i = 0; i < registers->length; i++) {
        struct reg_descriptor *it = (struct reg_descriptor *)registers->data + i;
        if (!strcmp(it->name, "gs_base")) gs_base = it->handle;
        if (!strcmp(it->name, "k_gs_base")) kernel_gs_base = it->handle;
    }
    value = g_byte_array_new();
    last_level = zeroed(SHAPES[LLC].sets * SHAPES[LLC].ways);
}

/* QEMU's main loop moves the guest's clock when all cores are idle, and wakes by the host's clock and whenever a timer of the guest
 * expires: it would find a core that is just halting, whose last instructions are not counted yet. So this library is loaded before
 * QEMU's, and lets the main loop run once each time the thread of all cores waits. Then two runs are the same. */
static sem_t cores_wait;

EXPORT int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *);
    if (!wait) wait = dlsym(RTLD_NEXT, "pthread_cond_wait");
    if (gettid() == getpid()) return wait(condition, mutex);
    sem_post(&cores_wait);
    int result = wait(condition, mutex);
    sem_trywait(&cores_wait);
    return result;
}

EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    if (timeout && !timeout->tv_sec && !timeout->tv_nsec) return syscall(SYS_ppoll, fds, count, timeout, mask, 8);
    int ready = syscall(SYS_ppoll, fds, count, NULL, mask, 8);
    while (sem_wait(&cores_wait))
        ;
    return ready;
}

/* Called by the thread that frees memory, and makes the cores exit to be able to, when the host's clock says so. */
EXPORT int malloc_trim(size_t keep) {
    for (;;) pause();
}

/* Argument: out=FILE. */
EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
    if (argc != 1 || strncmp(argv[0], "out=", 4) || !(out = fopen(argv[0] + 4, "w"))) return -1;
    qemu_plugin_register_vcpu_init_cb(id, started, NULL);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
    qemu_plugin_register_vcpu_discon_cb(id, INTERRUPT, interrupted, NULL);
    return 0;
}
