/*
 * A plugin of QEMU's TCG. It counts the instructions that user and kernel code executed, and the interrupts that arrived, on
 * all virtual cores but the one that executes MARK, and writes the counts as a line each time one does.
 *
 * QEMU's packages have no header, so the few prototypes of version 7 of the API are here. Compiled by tests/guest/prepare.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
typedef void (*core_cb)(unsigned core, void *data);
void qemu_plugin_register_vcpu_init_cb(uint64_t id, core_cb, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*)(struct qemu_plugin_tb *, void *), void *data);
void qemu_plugin_register_vcpu_discon_cb(uint64_t id, int type, void (*)(unsigned, int, uint64_t, uint64_t, void *),
                                         void *data);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, core_cb, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, core_cb, int flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *into, size_t length);
struct array *qemu_plugin_get_registers(void);
bool qemu_plugin_read_register(struct qemu_plugin_register *, struct array *into);
struct array *g_byte_array_new(void);
enum { READS_REGISTERS = 1, INTERRUPT = 1 };

/* The instruction that mark.S executes: a NOP whose unused address nobody else writes. */
static const uint8_t MARK[] = {0x0f, 0x1f, 0x84, 0x00, 0x4c, 0x75, 0x6c, 0x6c};

EXPORT int qemu_plugin_version = 7;

static struct qemu_plugin_register *gs_base, *kernel_gs_base;
static struct array *value;
static FILE *out;
/* The address of the per-CPU data of the core that marks; 0 before the first mark. */
static uint64_t marking;
static bool at_marking_core;
static uint64_t user, kernel, interrupts;

/* The kernel's half of the addresses has the highest bit. */
static bool is_kernel(uint64_t address) { return address >> 63; }

/* A core is told by the address of its per-CPU data, which is in GS or saved for it. Its number won't do: where cores take
 * turns on one thread, QEMU compiles the number of the core that translates a block first into it. */
static void find_core(void) {
    struct qemu_plugin_register *both[] = {gs_base, kernel_gs_base};
    for (int i = 0; i < 2; i++) {
        value->length = 0;
        uint64_t address = 0;
        if (qemu_plugin_read_register(both[i], value)) memcpy(&address, value->data, sizeof address);
        if (!is_kernel(address)) continue;
        at_marking_core = address == marking;
        return;
    }
}

/* The data is the number of instructions. They are counted when a block begins: one that a fault ends early is counted
 * whole. Inline additions would be cheaper, but corrupted guests under -icount. */
static void user_block(unsigned core, void *data) {
    if (!marking) return;
    find_core();
    if (!at_marking_core) user += (uintptr_t)data;
}

static void kernel_block(unsigned core, void *data) {
    if (!marking) return;
    find_core();
    if (!at_marking_core) kernel += (uintptr_t)data;
}

static void mark(unsigned core, void *data) {
    if (!marking) {
        value->length = 0;
        if (qemu_plugin_read_register(kernel_gs_base, value)) memcpy(&marking, value->data, sizeof marking);
    }
    fprintf(out, "%ju %ju %ju\n", (uintmax_t)user, (uintmax_t)kernel, (uintmax_t)interrupts);
    fflush(out);
}

static void translated(struct qemu_plugin_tb *block, void *data) {
    size_t count = qemu_plugin_tb_n_insns(block);
    core_cb callback = is_kernel(qemu_plugin_tb_vaddr(block)) ? kernel_block : user_block;
    qemu_plugin_register_vcpu_tb_exec_cb(block, callback, READS_REGISTERS, (void *)(uintptr_t)count);
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        uint8_t bytes[sizeof MARK];
        if (qemu_plugin_insn_data(instruction, bytes, sizeof bytes) == sizeof MARK && !memcmp(bytes, MARK, sizeof MARK))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, mark, READS_REGISTERS, NULL);
    }
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
}

/* Argument: out=FILE. */
EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
    if (argc != 1 || strncmp(argv[0], "out=", 4) || !(out = fopen(argv[0] + 4, "w"))) return -1;
    qemu_plugin_register_vcpu_init_cb(id, started, NULL);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
    qemu_plugin_register_vcpu_discon_cb(id, INTERRUPT, interrupted, NULL);
    return 0;
}
