// SPDX-License-Identifier: GPL-2.0
/*
 * Counts the kernel's accesses to some of its memory: a witness of copies that
 * does not ask the drivers. The processor's debug registers stop at every
 * access to eight bytes in the kernel's linear mapping, from any instruction,
 * and the call chain shows the module that caused it. Accesses of devices by
 * DMA and of user programs are not seen.
 *
 * hcablk-watch base
 *	prints the address at which the linear mapping begins, in hexadecimal.
 * hcablk-watch at ADDRESS...
 *	prints "watching", and at SIGTERM the accesses.
 * hcablk-watch read|write DEVICE BYTES COUNT
 *	watches its own buffer while it does COUNT O_DIRECT requests.
 *
 * Prints lines "MODULE ACCESSES" with the innermost module of the call chain, or
 * "kernel" without one; "lost N" when the kernel had no memory for a record.
 */

#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	PLACES = 4,		/* the number of debug registers */
	CPUS = 16,
	MODULES = 256,
	PAGE = 4096,
	RING_PAGES = 256,
	REQUEST_MAX = 1 << 20,
};

struct module {
	char name[64];
	uint64_t from, to;
	unsigned long accesses;
};

static struct module modules[MODULES + 1];
static unsigned int module_count;
static unsigned long lost;
static struct perf_event_mmap_page *rings[PLACES * CPUS];
static unsigned int ring_count;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static FILE *opened(const char *path)
{
	FILE *file = fopen(path, "r");

	if (!file)
		fail(path);
	return file;
}

/* Returns the beginning of the linear mapping, the segment of /proc/kcore with the machine's memory. */
static uint64_t linear_mapping(void)
{
	FILE *file = opened("/proc/kcore");
	Elf64_Ehdr head;
	Elf64_Phdr part;

	if (fread(&head, sizeof(head), 1, file) != 1 || fseek(file, head.e_phoff, SEEK_SET))
		fail("/proc/kcore");
	for (unsigned int n = 0; n < head.e_phnum; n++) {
		if (fread(&part, sizeof(part), 1, file) != 1)
			fail("/proc/kcore");
		/* Later segments are the kernel's own text and its modules. */
		if (part.p_type == PT_LOAD && part.p_paddr != (uint64_t)-1 && part.p_paddr &&
		    part.p_vaddr < 0xffffffff80000000) {
			fclose(file);
			return part.p_vaddr - part.p_paddr;
		}
	}
	fprintf(stderr, "no linear mapping\n");
	exit(1);
}

static void find_modules(void)
{
	FILE *file = opened("/proc/modules");
	struct module *m = modules;
	uint64_t size;

	while (module_count < MODULES &&
	       fscanf(file, "%63s %" SCNu64 " %*s %*s %*s %" SCNx64 "%*[^\n]", m->name, &size, &m->from) == 3) {
		m->to = m->from + size;
		m++;
		module_count++;
	}
	strcpy(m->name, "kernel");
	fclose(file);
}

static void watch(uint64_t address)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_BREAKPOINT, .size = sizeof(attr), .bp_type = HW_BREAKPOINT_RW,
		.bp_addr = address & ~7ULL, .bp_len = HW_BREAKPOINT_LEN_8, .sample_period = 1,
		.sample_type = PERF_SAMPLE_CALLCHAIN, .exclude_callchain_user = 1, .exclude_user = 1, .pinned = 1,
	};

	for (int cpu = 0; cpu < sysconf(_SC_NPROCESSORS_ONLN); cpu++) {
		int fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, 0);
		void *ring;

		if (fd < 0)
			fail("perf_event_open");
		ring = mmap(NULL, (RING_PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (ring == MAP_FAILED || ring_count == PLACES * CPUS)
			fail("the records' memory");
		rings[ring_count++] = ring;
	}
}

static void count_chain(const uint64_t *chain, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		for (struct module *m = modules; m < modules + module_count; m++)
			if (chain[i] >= m->from && chain[i] < m->to) {
				m->accesses++;
				return;
			}
	modules[module_count].accesses++;
}

static void read_ring(struct perf_event_mmap_page *ring)
{
	static uint64_t record[8192];
	const char *data = (const char *)ring + PAGE;
	uint64_t size = (uint64_t)RING_PAGES * PAGE, head = __atomic_load_n(&ring->data_head, __ATOMIC_ACQUIRE);

	for (uint64_t at = ring->data_tail; at < head; ) {
		const struct perf_event_header *header = (const void *)(data + at % size);
		uint16_t length = header->size;

		for (unsigned int i = 0; i < length / 8; i++)
			record[i] = *(const uint64_t *)(data + (at + 8 * i) % size);
		header = (const void *)record;
		if (header->type == PERF_RECORD_SAMPLE)
			count_chain(record + 2, record[1]);
		else if (header->type == PERF_RECORD_LOST)
			lost += record[2];
		at += length;
	}
	__atomic_store_n(&ring->data_tail, head, __ATOMIC_RELEASE);
}

static void print_state(void)
{
	for (unsigned int n = 0; n < ring_count; n++)
		read_ring(rings[n]);
	for (struct module *m = modules; m <= modules + module_count; m++)
		if (m->accesses)
			printf("%s %lu\n", m->name, m->accesses);
	if (lost)
		printf("lost %lu\n", lost);
}

static void watch_at(char **addresses)
{
	sigset_t end;
	int signal;

	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_BLOCK, &end, NULL);
	for (; *addresses; addresses++)
		watch(strtoull(*addresses, NULL, 16));
	printf("watching\n");
	fflush(stdout);
	sigwait(&end, &signal);
	print_state();
}

/* Returns the linear mapping's address of one of our pages. */
static uint64_t address_of(const char *place)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry;

	if (fd < 0 || pread(fd, &entry, 8, (uintptr_t)place / PAGE * 8) != 8 || !(entry >> 63))
		fail("/proc/self/pagemap");
	close(fd);
	return linear_mapping() + (entry & ((1ULL << 55) - 1)) * PAGE + (uintptr_t)place % PAGE;
}

static void watch_own(bool write, const char *device, size_t bytes, unsigned long count)
{
	char *buffer = mmap(NULL, REQUEST_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	int fd = open(device, O_DIRECT | (write ? O_WRONLY : O_RDONLY));

	if (fd < 0 || buffer == MAP_FAILED || bytes > REQUEST_MAX || mlock(buffer, REQUEST_MAX))
		fail(device);
	memset(buffer, 0x5a, bytes);
	/* The first bytes, the last bytes, and some between. */
	watch(address_of(buffer));
	watch(address_of(buffer + bytes / 2 + 64));
	watch(address_of(buffer + bytes - 8));
	while (count--)
		if ((write ? pwrite(fd, buffer, bytes, 0) : pread(fd, buffer, bytes, 0)) != (ssize_t)bytes)
			fail(device);
	print_state();
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "base")) {
		printf("%" PRIx64 "\n", linear_mapping());
		return 0;
	}
	find_modules();
	if (argc > 2 && argc <= 2 + PLACES && !strcmp(argv[1], "at"))
		watch_at(argv + 2);
	else if (argc == 5 && (!strcmp(argv[1], "read") || !strcmp(argv[1], "write")))
		watch_own(argv[1][0] == 'w', argv[2], strtoul(argv[3], NULL, 0), strtoul(argv[4], NULL, 0));
	else
		return 2;
	return 0;
}
