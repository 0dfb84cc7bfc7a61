// SPDX-License-Identifier: GPL-2.0
/*
 * A QEMU plugin that counts for the benchmark how often each block of the guest's
 * code runs, and the use of the verbs of soft-RoCE or of the tests' HCA. It costs
 * the guest no instruction. All CPUs must run in one thread of QEMU.
 *
 * count.so,out=FILE[,cpu=marked]. With cpu=marked, the plugin counts blocks of
 * code only on the CPU that makes the marks, and the use of verbs on all CPUs.
 * It counts nothing until the guest's hcablk-mark names a function to watch. At
 * each mark after that it writes its counts since the previous mark:
 *
 *	mark
 *	b ADDRESS INSTRUCTIONS TIMES	a block of code
 *	q QP ORDER SEND_CQ RECV_CQ	a queue pair; an older one has a smaller ORDER
 *	KIND OBJECT WHAT TIMES		calls of a watched function, see below
 *
 * Watched functions with their letters, and the 'KIND OBJECT WHAT' of their calls:
 *
 *	Q  rxe_create_qp(qp, ...), hca_create_qp(qp, ...)
 *	S  ..._post_send(qp, wr, ...): 's QP 0' each call, 'w QP OPCODE' each work
 *	   request, with OPCODE + 256 for a signaled one
 *	R  ..._post_recv(qp, wr, ...): 'r QP 0' each call, 'v QP 0' each work request
 *	C  rxe_cq_post(cq, ...), hca_cq_announce(cq, ...): 'c CQ 0'; the plugin then
 *	   also watches the completion handler of this queue
 *	E  a completion handler(cq, ...): 'e CQ 0'
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "qemu-plugin.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* nopl 0x6b6c6268(%rax) */
static const uint8_t mark_code[] = { 0x0f, 0x1f, 0x80, 0x68, 0x62, 0x6c, 0x6b };

/* Offsets in the kernel's struct ib_qp, ib_cq and ib_send_wr, the same in all supported series. */
enum { QP_SEND_CQ = 16, QP_RECV_CQ = 24, CQ_HANDLER = 16, WR_NEXT = 0, WR_OPCODE = 28, WR_FLAGS = 32 };
enum { SIGNALED = 1 << 1 };

/* Each block has a counter; a block that is translated again keeps its counter. */
enum { BLOCKS_SHIFT = 20, BLOCKS = 1 << BLOCKS_SHIFT };

struct block {
	uint64_t address, instructions;
};

struct watch {
	uint64_t address;
	char kind;
};

struct tally {
	char kind;
	uint64_t object, what, times;
};

struct pair {
	uint64_t qp, order, send_cq, recv_cq;
};

static FILE *out;
static struct block blocks[BLOCKS];
static struct qemu_plugin_scoreboard *counters;
static qemu_plugin_id_t self;
static bool counting;
/* With cpu=marked: the counters, and the counted CPU's GS base in the kernel. */
static uint64_t *counted, marked_cpu;
static struct watch watches[32];
static unsigned int n_watches;
static struct tally tallies[1024];
static unsigned int n_tallies;
static struct pair pairs[256];
static unsigned int n_pairs;
static uint64_t order;
static struct qemu_plugin_register *rdi, *rsi, *gs, *kernel_gs;
static GByteArray *buffer;

static void complain(const char *what)
{
	fprintf(out, "error %s\n", what);
}

static uint64_t read_register(struct qemu_plugin_register *reg)
{
	uint64_t value = 0;

	g_byte_array_set_size(buffer, 0);
	if (qemu_plugin_read_register(reg, buffer) == sizeof(value))
		memcpy(&value, buffer->data, sizeof(value));
	else
		complain("a register cannot be read");
	return value;
}

static uint64_t read_memory(uint64_t address, size_t size)
{
	uint64_t value = 0;

	g_byte_array_set_size(buffer, 0);
	if (qemu_plugin_read_memory_vaddr(address, buffer, size))
		memcpy(&value, buffer->data, size);
	else
		complain("memory cannot be read");
	return value;
}

static void add(char kind, uint64_t object, uint64_t what)
{
	struct tally *t = tallies;

	while (t < tallies + n_tallies && (t->kind != kind || t->object != object || t->what != what))
		t++;
	if (t == tallies + n_tallies) {
		if (n_tallies == sizeof(tallies) / sizeof(*tallies))
			return complain("too many kinds of calls");
		n_tallies++;
		*t = (struct tally){ kind, object, what, 0 };
	}
	t->times++;
}

/* A new queue pair may have the address of a destroyed one, and then replaces it. */
static struct pair *find_pair(uint64_t qp)
{
	struct pair *p = pairs;

	while (p < pairs + n_pairs && p->qp != qp)
		p++;
	if (p == pairs + n_pairs) {
		if (n_pairs == sizeof(pairs) / sizeof(*pairs)) {
			complain("too many queue pairs");
			return pairs;
		}
		n_pairs++;
		*p = (struct pair){ .qp = qp };
	}
	return p;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);

static void begin_again(qemu_plugin_id_t id)
{
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
}

static const struct watch *find_watch(uint64_t address)
{
	for (unsigned int i = 0; i < n_watches; i++)
		if (watches[i].address == address)
			return &watches[i];
	return NULL;
}

static void watch(char kind, uint64_t address)
{
	if (find_watch(address))
		return;
	if (n_watches == sizeof(watches) / sizeof(*watches))
		return complain("too many functions to watch");
	watches[n_watches++] = (struct watch){ address, kind };
	counting = true;
	/* Discard blocks translated so far: they neither count nor watch. */
	qemu_plugin_reset(self, begin_again);
}

static void called(char kind)
{
	uint64_t object = read_register(rdi);
	struct pair *pair;

	switch (kind) {
	case 'Q':
		pair = find_pair(object);
		*pair = (struct pair){ .qp = object, .order = ++order };
		break;
	case 'S':
		pair = find_pair(object);
		pair->send_cq = read_memory(object + QP_SEND_CQ, 8);
		pair->recv_cq = read_memory(object + QP_RECV_CQ, 8);
		add('s', object, 0);
		for (uint64_t wr = read_register(rsi); wr; wr = read_memory(wr + WR_NEXT, 8)) {
			uint64_t opcode = read_memory(wr + WR_OPCODE, 4);

			add('w', object, opcode + (read_memory(wr + WR_FLAGS, 4) & SIGNALED ? 256 : 0));
		}
		break;
	case 'R':
		add('r', object, 0);
		for (uint64_t wr = read_register(rsi); wr; wr = read_memory(wr + WR_NEXT, 8))
			add('v', object, 0);
		break;
	case 'C':
		add('c', object, 0);
		watch('E', read_memory(object + CQ_HANDLER, 8));
		break;
	case 'E':
		add('e', object, 0);
		break;
	}
}

static void executed(unsigned int vcpu, void *data)
{
	const struct watch *watch = data;

	(void)vcpu;
	called(watch->kind);
}

/*
 * Counts a block that runs on the marked CPU. An inline addition would be wrong where one thread runs all CPUs: QEMU 10.0
 * adds to the counter of the CPU for which the block was translated, and multiplies in place a constant that the guest's
 * code shares. `vcpu` is the number of that CPU, and wrong for the same reason. In the kernel, GS distinguishes the CPUs;
 * programs run on the marked CPU only.
 */
static void passed(unsigned int vcpu, void *data)
{
	uint64_t base = read_register(gs);

	(void)vcpu;
	if (base == marked_cpu || !(base >> 63))
		++*(uint64_t *)data;
}

static void marked(unsigned int vcpu, void *data)
{
	uint64_t kind = read_register(rdi);
	uint64_t *times = counted ? counted : qemu_plugin_scoreboard_find(counters, vcpu);

	(void)data;
	if (counted)
		marked_cpu = read_register(kernel_gs);
	if (kind)
		return watch(kind, read_register(rsi));
	fprintf(out, "mark\n");
	for (unsigned int i = 0; i < BLOCKS; i++) {
		if (times[i])
			fprintf(out, "b %llx %llu %llu\n", (unsigned long long)blocks[i].address,
				(unsigned long long)blocks[i].instructions, (unsigned long long)times[i]);
		times[i] = 0;
	}
	for (unsigned int i = 0; i < n_pairs; i++)
		fprintf(out, "q %llx %llu %llx %llx\n", (unsigned long long)pairs[i].qp,
			(unsigned long long)pairs[i].order, (unsigned long long)pairs[i].send_cq,
			(unsigned long long)pairs[i].recv_cq);
	for (unsigned int i = 0; i < n_tallies; i++)
		fprintf(out, "%c %llx %llu %llu\n", tallies[i].kind, (unsigned long long)tallies[i].object,
			(unsigned long long)tallies[i].what, (unsigned long long)tallies[i].times);
	n_tallies = 0;
	fflush(out);
}

static unsigned int find_block(uint64_t address, uint64_t instructions)
{
	unsigned int n = (address * 0x9e3779b97f4a7c15 + instructions) >> (64 - BLOCKS_SHIFT);

	for (unsigned int tries = 0; tries < 256; tries++, n = (n + 1) % BLOCKS) {
		if (!blocks[n].instructions)
			blocks[n] = (struct block){ address, instructions };
		if (blocks[n].address == address && blocks[n].instructions == instructions)
			return n;
	}
	complain("too many blocks of code");
	return n;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb), instructions = qemu_plugin_tb_n_insns(tb);
	const struct watch *watch = find_watch(address);
	uint8_t code[sizeof(mark_code)];

	(void)id;
	if (counting) {
		unsigned int n = find_block(address, instructions);
		qemu_plugin_u64 counter = { counters, n * sizeof(uint64_t) };

		if (counted)
			qemu_plugin_register_vcpu_tb_exec_cb(tb, passed, QEMU_PLUGIN_CB_R_REGS, counted + n);
		else
			qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, counter, 1);
	}
	if (watch)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_R_REGS, (void *)watch);
	/* Only programs make marks. */
	for (size_t i = 0; !(address >> 63) && i < instructions; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (qemu_plugin_insn_data(insn, code, sizeof(code)) == sizeof(code) &&
		    !memcmp(code, mark_code, sizeof(code)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, QEMU_PLUGIN_CB_R_REGS, NULL);
	}
}

static void began(qemu_plugin_id_t id, unsigned int vcpu)
{
	GArray *registers = qemu_plugin_get_registers();
	qemu_plugin_reg_descriptor *list = (qemu_plugin_reg_descriptor *)registers->data;

	(void)id, (void)vcpu;
	for (unsigned int i = 0; i < registers->len; i++) {
		if (!strcmp(list[i].name, "rdi"))
			rdi = list[i].handle;
		if (!strcmp(list[i].name, "rsi"))
			rsi = list[i].handle;
		if (!strcmp(list[i].name, "gs_base"))
			gs = list[i].handle;
		if (!strcmp(list[i].name, "k_gs_base"))
			kernel_gs = list[i].handle;
	}
	if (!rdi || !rsi || !gs || !kernel_gs)
		abort();
	if (!buffer)
		buffer = g_byte_array_new();
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
		else if (!strcmp(argv[i], "cpu=marked"))
			counted = calloc(BLOCKS, sizeof(*counted));
		else
			return 1;
	}
	if (!out)
		return 1;
	self = id;
	if (!counted)
		counters = qemu_plugin_scoreboard_new(BLOCKS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_init_cb(id, began);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
