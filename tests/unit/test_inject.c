/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inject: does every sample of a rewritten recording get the name of the code that was there?
 *
 * The main test makes random histories: two processes with equal mappings whose heaps grow page by
 * page, are covered by libraries now and then, and in which bodies come, go and reuse addresses.
 * The recording has the records that the kernel would write, in the disorder that perf leaves. What
 * inject makes of it is then read as perf does: records queued and sorted by time within the bounds
 * that FINISHED_ROUND sets, maps cut by maps, the symbol of an image at (ip - start + pgoff). The
 * model beside it is an array of owners by address and time.
 */
#include "inject/inject.h"

#include <check.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "inject/pages.h"

static uint64_t rng;

static uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * n >> 32);
}

/* -- a recording ---------------------------------------------------------------------- */

#define SAMPLE_TYPE 7u /* IP TID TIME */
#define RUNTIME     "/memfd:doublemapper (deleted)"

struct record {
	uint64_t time; /* 0: synthesized */
	uint32_t size;
	uint8_t bytes[160];
};

struct recording {
	struct record *records;
	size_t n, room;
	int fd;
};

static void put32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, 4);
}

static void put64(uint8_t *p, uint64_t v)
{
	memcpy(p, &v, 8);
}

static uint64_t get64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return v;
}

static struct record *add(struct recording *rec, uint32_t type, uint16_t misc, uint64_t time)
{
	struct record *r;

	if (rec->n == rec->room) {
		rec->room = rec->room ? 2 * rec->room : 256;
		rec->records = realloc(rec->records, rec->room * sizeof(*rec->records));
		ck_assert_ptr_nonnull(rec->records);
	}
	r = &rec->records[rec->n++];
	memset(r, 0, sizeof(*r));
	r->time = time;
	put32(r->bytes, type);
	memcpy(r->bytes + 4, &misc, 2);
	return r;
}

/* Ends a record with the trailer of sample_id_all. */
static void close_record(struct record *r, uint32_t size, uint32_t pid)
{
	uint16_t size16 = (uint16_t)(size + 16);

	if (r->time) {
		put32(r->bytes + size, pid);
		put32(r->bytes + size + 4, pid);
		put64(r->bytes + size + 8, r->time);
	}
	r->size = size16;
	memcpy(r->bytes + 6, &size16, 2);
}

static void add_map(struct recording *rec, uint64_t time, uint32_t pid, uint64_t addr, uint64_t len,
		    uint64_t pgoff, const char *name, uint64_t inode)
{
	struct record *r = add(rec, PERFDATA_MMAP2, 2, time);
	uint32_t name_size = (uint32_t)((strlen(name) + 8) & ~7u);

	put32(r->bytes + 8, pid);
	put32(r->bytes + 12, pid);
	put64(r->bytes + 16, addr);
	put64(r->bytes + 24, len);
	put64(r->bytes + 32, pgoff);
	put64(r->bytes + 48, inode);
	put32(r->bytes + 64, 5);
	put32(r->bytes + 68, 1);
	memcpy(r->bytes + 72, name, strlen(name));
	close_record(r, 72 + name_size, pid);
}

static void add_task(struct recording *rec, uint32_t type, uint64_t time, uint32_t pid,
		     uint32_t ppid)
{
	struct record *r = add(rec, type, 0, time);

	put32(r->bytes + 8, pid);
	put32(r->bytes + 12, ppid);
	put32(r->bytes + 16, pid);
	put32(r->bytes + 20, ppid);
	put64(r->bytes + 24, time);
	close_record(r, 32, pid);
}

static void add_exec(struct recording *rec, uint64_t time, uint32_t pid)
{
	struct record *r = add(rec, PERFDATA_COMM, PERFDATA_MISC_COMM_EXEC, time);

	put32(r->bytes + 8, pid);
	put32(r->bytes + 12, pid);
	memcpy(r->bytes + 16, "load", 4);
	close_record(r, 24, pid);
}

static void add_sample(struct recording *rec, uint64_t time, uint32_t pid, uint64_t ip)
{
	struct record *r = add(rec, PERFDATA_SAMPLE, 2, time);
	uint16_t size = 32;

	put64(r->bytes + 8, ip);
	put32(r->bytes + 16, pid);
	put32(r->bytes + 20, pid);
	put64(r->bytes + 24, time);
	r->size = size;
	memcpy(r->bytes + 6, &size, 2);
}

static void add_round(struct recording *rec)
{
	struct record *r = add(rec, PERFDATA_FINISHED_ROUND, 0, 0);
	uint16_t size = 8;

	r->size = size;
	memcpy(r->bytes + 6, &size, 2);
}

static int write_recording(const struct recording *rec)
{
	int fd = memfd_create("recording", MFD_CLOEXEC);
	uint8_t header[104] = "PERFILE2", attr[144] = { 0 };
	uint64_t data = 0;
	size_t i;

	for (i = 0; i < rec->n; i++)
		data += rec->records[i].size;
	put64(header + 8, sizeof(header));
	put64(header + 16, sizeof(attr));
	put64(header + 24, sizeof(header));
	put64(header + 32, sizeof(attr));
	put64(header + 40, sizeof(header) + sizeof(attr));
	put64(header + 48, data);
	put32(attr + 4, 128);
	put64(attr + 16, 1000);
	put64(attr + 24, SAMPLE_TYPE);
	put64(attr + 40, UINT64_C(1) << 18 | UINT64_C(1) << 23 | UINT64_C(1) << 25);
	put32(attr + 92, 1);
	ck_assert_int_eq(write(fd, header, sizeof(header)), sizeof(header));
	ck_assert_int_eq(write(fd, attr, sizeof(attr)), sizeof(attr));
	for (i = 0; i < rec->n; i++)
		ck_assert_int_eq(write(fd, rec->records[i].bytes, rec->records[i].size),
				 rec->records[i].size);
	return fd;
}

/* -- perf, as far as names go ---------------------------------------------------------- */

struct symbol {
	uint64_t addr, size;
	char name[64];
};

struct dso {
	uint8_t id[20];
	struct symbol *symbols;
	size_t n;
};

struct map {
	uint64_t lo, hi, pgoff; /* pgoff: of lo */
	int dso;
};

struct reader_process {
	uint32_t pid;
	struct map maps[4096];
	size_t n;
};

struct perf {
	struct dso dsos[8];
	size_t n_dsos;
	struct reader_process processes[3];
	size_t n_processes;
};

static void load_dso(struct perf *perf, const struct elf_image *image, const uint8_t *id)
{
	int fd = memfd_create("image", MFD_CLOEXEC);
	struct dso *dso = &perf->dsos[perf->n_dsos++];
	Elf64_Ehdr ehdr;
	Elf64_Shdr shdr[8];
	Elf64_Sym sym;
	struct stat st;
	uint8_t *file;
	size_t i;

	ck_assert_int_eq(elf_image_write(image, fd), 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	file = malloc((size_t)st.st_size);
	ck_assert_int_eq(pread(fd, file, (size_t)st.st_size, 0), st.st_size);
	close(fd);
	memcpy(dso->id, id, 20);
	memcpy(&ehdr, file, sizeof(ehdr));
	ck_assert_uint_le(ehdr.e_shnum, 8);
	memcpy(shdr, file + ehdr.e_shoff, ehdr.e_shnum * sizeof(*shdr));
	for (i = 0; shdr[i].sh_type != SHT_SYMTAB; i++)
		;
	dso->n = shdr[i].sh_size / sizeof(sym);
	dso->symbols = calloc(dso->n, sizeof(*dso->symbols));
	while (dso->n-- > 1) {
		memcpy(&sym, file + shdr[i].sh_offset + dso->n * sizeof(sym), sizeof(sym));
		dso->symbols[dso->n - 1].addr = sym.st_value;
		dso->symbols[dso->n - 1].size = sym.st_size;
		snprintf(dso->symbols[dso->n - 1].name, sizeof(dso->symbols->name), "%s",
			 (char *)file + shdr[shdr[i].sh_link].sh_offset + sym.st_name);
	}
	dso->n = shdr[i].sh_size / sizeof(sym) - 1;
	free(file);
}

static struct reader_process *perf_process(struct perf *perf, uint32_t pid)
{
	size_t i;

	for (i = 0; i < perf->n_processes; i++)
		if (perf->processes[i].pid == pid)
			return &perf->processes[i];
	ck_assert_uint_lt(perf->n_processes, 3);
	perf->processes[perf->n_processes].pid = pid;
	perf->processes[perf->n_processes].n = 0;
	return &perf->processes[perf->n_processes++];
}

static void push_map(struct reader_process *p, struct map m)
{
	ck_assert_uint_lt(p->n, 4096);
	p->maps[p->n++] = m;
}

/* A new map cuts what it covers. */
static void perf_map(struct perf *perf, const uint8_t *bytes)
{
	uint16_t misc;
	uint32_t pid;
	struct map m = { .lo = get64(bytes + 16), .pgoff = get64(bytes + 32), .dso = -1 };
	struct reader_process *p;
	size_t i, n;

	memcpy(&misc, bytes + 4, 2);
	memcpy(&pid, bytes + 8, 4);
	m.hi = m.lo + get64(bytes + 24);
	for (i = 0; (misc & PERFDATA_MISC_BUILD_ID) && i < perf->n_dsos; i++)
		if (bytes[40] == 20 && memcmp(bytes + 44, perf->dsos[i].id, 20) == 0)
			m.dso = (int)i;
	ck_assert(!(misc & PERFDATA_MISC_BUILD_ID) || m.dso >= 0);
	p = perf_process(perf, pid);
	n = p->n;
	for (i = 0; i < n; i++) {
		struct map old = p->maps[i];

		if (old.hi <= m.lo || old.lo >= m.hi)
			continue;
		p->maps[i].hi = MAX(old.lo, m.lo);
		if (old.hi > m.hi) {
			struct map rest = old;

			rest.lo = m.hi;
			rest.pgoff = old.pgoff + (m.hi - old.lo);
			push_map(p, rest);
		}
	}
	for (i = n = 0; i < p->n; i++)
		if (p->maps[i].lo < p->maps[i].hi)
			p->maps[n++] = p->maps[i];
	p->n = n;
	push_map(p, m);
}

static const char *perf_name(struct perf *perf, uint32_t pid, uint64_t ip)
{
	struct reader_process *p = perf_process(perf, pid);
	size_t i, j;

	for (i = 0; i < p->n; i++) {
		const struct map *m = &p->maps[i];
		uint64_t addr = ip - m->lo + m->pgoff;

		if (ip < m->lo || ip >= m->hi || m->dso < 0)
			continue;
		for (j = 0; j < perf->dsos[m->dso].n; j++) {
			const struct symbol *s = &perf->dsos[m->dso].symbols[j];

			if (addr >= s->addr && addr < s->addr + s->size)
				return s->name;
		}
	}
	return "";
}

struct queued {
	uint64_t time;
	size_t order;
	uint8_t bytes[256];
};

static int queued_compare(const void *ap, const void *bp)
{
	const struct queued *a = ap, *b = bp;

	if (a->time != b->time)
		return a->time < b->time ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* Calls fn for each sample, in the order in which perf would see it, with the name it would show.
 */
static void perf_read(struct perf *perf, int fd,
		      void (*fn)(void *data, uint32_t pid, uint64_t time, uint64_t ip,
				 const char *name),
		      void *data)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	struct perfdata_record rec;
	struct queued *queue = NULL;
	size_t i, n = 0, room = 0, order = 0;
	uint64_t flushed = 0, newest = 0, limit = 0;
	int r;

	ck_assert_int_eq(perfdata_open(&p, fd, NULL), 0);
	for (;;) {
		bool round;

		r = perfdata_next(p, &rec);
		ck_assert(r == 0 || r == PERFDATA_E_END);
		round = r || rec.type == PERFDATA_FINISHED_ROUND;
		if (!round) {
			uint64_t time = rec.type == PERFDATA_SAMPLE
						? get64(rec.bytes + 24)
						: get64(rec.bytes + rec.size - 8);

			if (!time) { /* at once */
				if (rec.type == PERFDATA_MMAP2)
					perf_map(perf, rec.bytes);
				continue;
			}
			/* "out of order events recorded" */
			ck_assert_uint_ge(time, flushed);
			newest = MAX(newest, time);
			if (n == room) {
				room = room ? room * 2 : 256;
				queue = realloc(queue, room * sizeof(*queue));
			}
			ck_assert_uint_le(rec.size, sizeof(queue->bytes));
			queue[n].time = time;
			queue[n].order = order++;
			memcpy(queue[n++].bytes, rec.bytes, rec.size);
			continue;
		}
		if (r)
			limit = UINT64_MAX;
		if (n)
			qsort(queue, n, sizeof(*queue), queued_compare);
		for (i = 0; i < n && queue[i].time <= limit; i++) {
			const uint8_t *b = queue[i].bytes;
			uint32_t type, pid;

			memcpy(&type, b, 4);
			if (type == PERFDATA_MMAP2)
				perf_map(perf, b);
			if (type != PERFDATA_SAMPLE)
				continue;
			memcpy(&pid, b + 16, 4);
			fn(data, pid, get64(b + 24), get64(b + 8),
			   perf_name(perf, pid, get64(b + 8)));
		}
		if (i)
			memmove(queue, queue + i, (n - i) * sizeof(*queue));
		n -= i;
		flushed = limit;
		limit = newest; /* of the round before, at the next */
		if (r)
			break;
	}
	ck_assert_uint_eq(n, 0);
	free(queue);
}

static void perf_free(struct perf *perf)
{
	size_t i;

	for (i = 0; i < perf->n_dsos; i++)
		free(perf->dsos[i].symbols);
	free(perf);
}

/* -- running inject -------------------------------------------------------------------- */

static uint64_t same_clock(void *clock UNUSED, uint64_t ns)
{
	return ns;
}

static const uint8_t *some_bytes(void *data UNUSED, const struct codemap_info *info UNUSED)
{
	return NULL;
}

struct source {
	uint32_t pid;
	size_t nth; /* program of that pid */
	struct codemap *map;
	uint32_t owner;
};

static struct inject *inject_file(struct perfdata *p, const struct inject_options *opts,
				  const struct source *sources, size_t n, bool times)
{
	struct inject *inj;
	size_t i, j, nth;

	ck_assert_int_eq(inject_new(&inj, opts), 0);
	ck_assert_int_eq(inject_scan(inj, p), 0);
	ck_assert_int_eq(inject_scanned(inj), 0);
	for (i = 0; i < n; i++) {
		struct inject_code code = {
			.map = sources[i].map,
			.machine = EM_X86_64,
			.owner = sources[i].owner,
			.bytes = some_bytes,
			.to_file_ns = times ? same_clock : NULL,
			.to_map_ns = times ? same_clock : NULL,
		};

		for (j = 0, nth = 0; j < inject_n_programs(inj); j++)
			if (inject_program(inj, j)->pid == sources[i].pid &&
			    nth++ == sources[i].nth)
				inject_set_code(inj, j, &code);
	}
	ck_assert_int_eq(inject_plan(inj), 0);
	return inj;
}

/* Returns the output, and the images loaded. */
static int run_inject(const struct recording *rec, const struct source *sources, size_t n,
		      bool times, struct perf **perfp, struct inject_stats *stats)
{
	static const struct inject_options opts = { .no_tiers = true };
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_(inject_freep) struct inject *inj = NULL;
	int in = write_recording(rec), out = memfd_create("out", MFD_CLOEXEC);
	size_t i;

	*perfp = calloc(1, sizeof(**perfp));
	ck_assert_int_eq(perfdata_open(&p, in, NULL), 0);
	inj = inject_file(p, &opts, sources, n, times);
	for (i = 0; i < inject_n_images(inj); i++) {
		const uint8_t *id;
		const char *label;
		const struct elf_image *image = inject_image(inj, i, &label, &id);

		if (image)
			load_dso(*perfp, image, id);
	}
	ck_assert_int_eq(perfdata_writer_new(&w, p, out), 0);
	ck_assert_int_eq(inject_rewrite(inj, p, w), 0);
	ck_assert_int_eq(perfdata_writer_finish(w), 0);
	if (stats)
		inject_get_stats(inj, stats);
	close(in);
	return out;
}

static struct codemap *new_map(void)
{
	struct codemap_options opts = { .retired_bytes = SIZE_MAX, .retired_ns = UINT64_MAX };
	struct codemap *map;

	ck_assert_int_eq(codemap_new(&map, &opts), 0);
	return map;
}

#define FLAGS_JIT     0x208u
#define FLAGS_R2R     0x0u
#define FLAGS_DYNAMIC 0x1u

static void load(struct codemap *map, bool rundown, uint64_t method, uint64_t start, uint32_t size,
		 uint64_t time, uint32_t flags)
{
	char name[32];
	struct codemap_load l = {
		.method_id = method,
		.module_id = 1,
		.start = start,
		.version = 0,
		.time = time,
		.size = size,
		.flags = flags,
		.ns = "N",
		.ns_len = 1,
		.name = name,
		.sig = "void  ()",
		.sig_len = 8,
	};

	l.name_len = (uint32_t)snprintf(name, sizeof(name), "m%lu", (unsigned long)method);
	if (rundown)
		ck_assert_int_ge(codemap_rundown(map, &l, NULL), 0);
	else
		ck_assert_int_ge(codemap_load(map, &l, NULL), 0);
}

/* -- random histories ------------------------------------------------------------------ */

#define HEAP     UINT64_C(0x7f0000000000)
#define GRANULES 2048u /* of 16 bytes: 8 pages */
#define STEP     10u
#define N_STEPS  600u

struct model {
	uint32_t owner[GRANULES]; /* 0: none */
	uint32_t start[GRANULES]; /* first granule of the owner */
	uint32_t size[GRANULES];
	uint32_t mapped; /* granules of the heap */
	uint32_t lib_lo, lib_hi;
};

struct expected {
	uint32_t pid;
	uint64_t time, ip;
	uint32_t owner;
	bool seen;
};

struct check {
	struct expected *items;
	size_t n, named;
};

static void check_sample(void *data, uint32_t pid, uint64_t time, uint64_t ip, const char *name)
{
	struct check *check = data;
	char want[40] = "";
	size_t i;

	for (i = 0; i < check->n; i++) {
		struct expected *e = &check->items[i];

		if (e->pid != pid || e->time != time || e->ip != ip || e->seen)
			continue;
		e->seen = true;
		if (e->owner)
			snprintf(want, sizeof(want), "N::m%u", e->owner);
		if (strcmp(want, name) != 0)
			ck_abort_msg("pid %u, time %lu, ip %lx: %s instead of %s", pid,
				     (unsigned long)time, (unsigned long)ip, name, want);
		check->named += e->owner != 0;
		return;
	}
	ck_abort_msg("a sample that was never taken");
}

static void retire(struct model *m, struct codemap *map, uint32_t granule, uint64_t time)
{
	uint32_t owner = m->owner[granule], start = m->start[granule], i;

	if (!owner)
		return;
	codemap_unload(map, owner, HEAP + 16 * (uint64_t)start, time);
	for (i = start; i < start + m->size[start]; i++)
		m->owner[i] = 0;
}

static void make_body(struct model *m, struct codemap *map, uint32_t *next, uint64_t time)
{
	uint32_t size = 1 + draw(40), start = draw(m->mapped), i;

	if (start + size > m->mapped)
		return;
	/* the runtime announces the end of what was there, or forgets to */
	for (i = start; i < start + size; i++)
		if (m->owner[i] && draw(2))
			retire(m, map, i, time - 1);
	for (i = start; i < start + size; i++) {
		uint32_t old = m->start[i], j;

		if (!m->owner[i])
			continue;
		for (j = old; j < old + m->size[old]; j++)
			m->owner[j] = 0;
	}
	load(map, false, ++*next, HEAP + 16 * (uint64_t)start, 16 * size, time, FLAGS_JIT);
	for (i = start; i < start + size; i++) {
		m->owner[i] = *next;
		m->start[i] = start;
	}
	m->size[start] = size;
}

static void grow(struct model *m, struct recording *rec, uint32_t pid, uint64_t time)
{
	if (m->mapped == GRANULES)
		return;
	m->mapped += 256;
	add_map(rec, time, pid, HEAP, 16 * (uint64_t)m->mapped, 0x10000, RUNTIME, 77);
}

static void history(uint64_t seed)
{
	struct recording rec = { .fd = -1 };
	struct model models[2] = { { .mapped = 256 }, { .mapped = 512 } };
	struct codemap *maps[2] = { new_map(), new_map() };
	struct source sources[2] = { { 100, 0, maps[0], 0 }, { 200, 0, maps[1], 0 } };
	struct expected *expected = calloc(N_STEPS, sizeof(*expected));
	struct check check = { .items = expected };
	struct perf *perf;
	uint32_t next = 0, step, i;
	bool inverted = seed & 1; /* rounds come in disorder */
	size_t round = 0;
	int out;

	rng = seed * 0x9e3779b97f4a7c15u + 1;
	for (i = 0; i < 2; i++) {
		uint32_t pid = sources[i].pid;

		/* what was there before the recording: some of it only a rundown knows */
		add_map(&rec, 0, pid, HEAP, 16 * (uint64_t)models[i].mapped, 0x10000, RUNTIME, 77);
		make_body(&models[i], maps[i], &next, 500);
		if (!models[i].owner[0]) {
			models[i].owner[0] = ++next;
			models[i].start[0] = 0;
			models[i].size[0] = 1;
			load(maps[i], true, next, HEAP, 16, 900, FLAGS_JIT);
		}
	}
	round = rec.n;
	for (step = 0; step < N_STEPS; step++) {
		uint64_t time = 1000 + (uint64_t)step * STEP;
		uint32_t which = draw(2), what = step ? draw(20) : 19, pid = sources[which].pid;
		struct model *m = &models[which];

		if (what < 5) {
			make_body(m, maps[which], &next, time);
		} else if (what < 7) {
			retire(m, maps[which], draw(m->mapped), time);
		} else if (what < 8) {
			grow(m, &rec, pid, time);
		} else if (what < 9 && draw(8) == 0) {
			/* the same record again, as mprotect makes it */
			add_map(&rec, time, pid, HEAP, 16 * (uint64_t)m->mapped, 0x10000, RUNTIME,
				77);
		} else {
			uint32_t granule = draw(m->mapped);
			uint64_t ip = HEAP + 16 * (uint64_t)granule + draw(16);

			add_sample(&rec, time, pid, ip);
			expected[check.n++] = (struct expected){
				.pid = pid,
				.time = time,
				.ip = ip,
				.owner = m->owner[granule],
			};
		}
		if (draw(10) == 0) {
			/* what one CPU wrote comes before what another did */
			if (inverted && rec.n - round > 1) {
				size_t half = round + (rec.n - round) / 2, a = round, b = half, k;
				struct record *copy = calloc(rec.n - round, sizeof(*copy));

				memcpy(copy, rec.records + round, (rec.n - round) * sizeof(*copy));
				for (k = round; k < rec.n; k++)
					rec.records[k] =
						b < rec.n ? copy[b++ - round] : copy[a++ - round];
				free(copy);
			}
			add_round(&rec);
			round = rec.n;
		}
	}
	out = run_inject(&rec, sources, 2, true, &perf, NULL);
	perf_read(perf, out, check_sample, &check);
	for (i = 0; i < check.n; i++)
		ck_assert(expected[i].seen);
	ck_assert_uint_gt(check.named, 10);
	perf_free(perf);
	close(out);
	free(expected);
	free(rec.records);
	codemap_free(maps[0]);
	codemap_free(maps[1]);
}

START_TEST(test_histories)
{
	const char *env = getenv("INJECT_HISTORIES");
	uint64_t i, n = env ? strtoull(env, NULL, 10) : 300;

	for (i = 1; i <= n; i++)
		history(i);
}
END_TEST

/* -- single cases ---------------------------------------------------------------------- */

struct names {
	char text[512];
};

static void collect(void *data, uint32_t pid, uint64_t time UNUSED, uint64_t ip UNUSED,
		    const char *name)
{
	struct names *names = data;
	size_t len = strlen(names->text);

	snprintf(names->text + len, sizeof(names->text) - len, "%u:%s ", pid, name);
}

static void expect(const struct recording *rec, const struct source *sources, size_t n, bool times,
		   const char *want, struct inject_stats *stats)
{
	struct names names = { "" };
	struct perf *perf;
	int out = run_inject(rec, sources, n, times, &perf, stats);

	perf_read(perf, out, collect, &names);
	ck_assert_str_eq(names.text, want);
	perf_free(perf);
	close(out);
}

/* A DLL is one image for all processes, wherever it is mapped. */
START_TEST(test_file)
{
	struct recording rec = { 0 };
	struct codemap *maps[2] = { new_map(), new_map() };
	struct source sources[2] = { { 100, 0, maps[0], 0 }, { 200, 0, maps[1], 0 } };
	struct inject_stats stats;

	add_map(&rec, 0, 100, 0x7f1000000000, 0x10000, 0x400, "/app/a.dll", 5);
	add_map(&rec, 0, 200, 0x7f2000000000, 0x10000, 0x400, "/app/a.dll", 5);
	add_map(&rec, 0, 200, 0x7f3000000000, 0x10000, 0x400, "/other/a.dll", 6);
	load(maps[0], true, 1, 0x7f1000000100, 0x40, 50, FLAGS_R2R);
	load(maps[1], true, 1, 0x7f2000000100, 0x40, 50, FLAGS_R2R);
	load(maps[1], true, 2, 0x7f2000000200, 0x40, 50, FLAGS_R2R);
	load(maps[1], true, 3, 0x7f3000000100, 0x40, 50, FLAGS_R2R);
	add_sample(&rec, 1000, 100, 0x7f1000000110);
	add_sample(&rec, 1010, 100, 0x7f1000000210); /* known by the other process */
	add_sample(&rec, 1020, 200, 0x7f2000000210);
	add_sample(&rec, 1030, 200, 0x7f3000000110);
	add_sample(&rec, 1040, 200, 0x7f3000000210);
	expect(&rec, sources, 2, true, "100:N::m1 100:N::m2 200:N::m2 200:N::m3 200: ", &stats);
	ck_assert_uint_eq(stats.images, 2);
	ck_assert_uint_eq(stats.inserted, 0);
	free(rec.records);
	codemap_free(maps[0]);
	codemap_free(maps[1]);
}
END_TEST

/* One user's process says nothing of what another's runs, and nobody names libc. */
START_TEST(test_foreign_file)
{
	struct recording rec = { 0 };
	struct codemap *maps[2] = { new_map(), new_map() };
	struct source sources[2] = { { 100, 0, maps[0], 0 }, { 200, 0, maps[1], 1000 } };

	add_map(&rec, 0, 100, 0x7f1000000000, 0x10000, 0x400, "/app/a.dll", 5);
	add_map(&rec, 0, 100, 0x7f1000100000, 0x10000, 0x400, "/lib/libc.so.6", 7);
	add_map(&rec, 0, 200, 0x7f2000000000, 0x10000, 0x400, "/app/a.dll", 5);
	add_map(&rec, 0, 200, 0x7f2000100000, 0x10000, 0x400, "/lib/libc.so.6", 7);
	add_map(&rec, 0, 300, 0x7f3000000000, 0x10000, 0x400, "/app/a.dll", 5);
	load(maps[0], true, 1, 0x7f1000000100, 0x40, 50, FLAGS_R2R);
	load(maps[1], true, 2, 0x7f2000000100, 0x40, 50, FLAGS_R2R);
	load(maps[1], true, 3, 0x7f2000000200, 0x40, 50, FLAGS_R2R);
	load(maps[1], true, 4, 0x7f2000100000, 0x8000, 50, FLAGS_R2R);
	add_sample(&rec, 1000, 100, 0x7f1000000110);
	add_sample(&rec, 1010, 100, 0x7f1000000210);
	add_sample(&rec, 1020, 100, 0x7f1000100010);
	add_sample(&rec, 1030, 200, 0x7f2000000110);
	add_sample(&rec, 1040, 200, 0x7f2000000210);
	add_sample(&rec, 1050, 300, 0x7f3000000110);
	expect(&rec, sources, 2, true, "100:N::m1 100: 100: 200:N::m2 200:N::m3 300: ", NULL);
	/* all of one user: what a program without code of its own runs is told by the others */
	sources[1].owner = 0;
	expect(&rec, sources, 1, true, "100:N::m1 100: 100: 200:N::m1 200: 300:N::m1 ", NULL);
	free(rec.records);
	codemap_free(maps[0]);
	codemap_free(maps[1]);
}
END_TEST

/* What is dated after a program's end does not reach the next one of that pid. */
START_TEST(test_pid_again)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source source = { 100, 0, map, 0 };

	add_map(&rec, 0, 100, HEAP, 0x1000, 0x10000, RUNTIME, 77);
	load(map, false, 1, HEAP, 0x100, 500, FLAGS_JIT);
	load(map, false, 2, HEAP + 0x200, 0x100, 2020, FLAGS_JIT);
	add_sample(&rec, 1000, 100, HEAP + 8);
	add_task(&rec, PERFDATA_EXIT, 1500, 100, 1);
	add_task(&rec, PERFDATA_FORK, 2000, 100, 1);
	add_map(&rec, 2010, 100, HEAP, 0x1000, 0, "/bin/other", 9);
	add_sample(&rec, 2030, 100, HEAP + 0x208);
	expect(&rec, &source, 1, true, "100:N::m1 100: ", NULL);
	free(rec.records);
	codemap_free(map);
}
END_TEST

/* The pid's second program is not the first one. */
START_TEST(test_exec)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source second = { 100, 1, map, 0 };

	load(map, true, 1, HEAP, 0x100, 5000, FLAGS_JIT);
	add_map(&rec, 0, 100, HEAP, 0x1000, 0x10000, RUNTIME, 77);
	add_sample(&rec, 1000, 100, HEAP + 8);
	add_exec(&rec, 2000, 100);
	add_map(&rec, 2010, 100, HEAP, 0x1000, 0x10000, RUNTIME, 78);
	add_sample(&rec, 2020, 100, HEAP + 8);
	expect(&rec, &second, 1, true, "100: 100:N::m1 ", NULL);
	free(rec.records);
	codemap_free(map);
}
END_TEST

/* A fork has its parent's code until it calls exec; an exit ends a program. */
START_TEST(test_fork)
{
	struct recording rec = { 0 };
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_(inject_freep) struct inject *inj = NULL;
	static const struct inject_options opts = { 0 };
	int fd;

	add_map(&rec, 0, 100, HEAP, 0x1000, 0x10000, RUNTIME, 77);
	add_sample(&rec, 1000, 100, 0x1000);
	add_task(&rec, PERFDATA_FORK, 1010, 101, 100);
	add_sample(&rec, 1020, 101, HEAP + 8);
	add_exec(&rec, 1030, 101);
	add_task(&rec, PERFDATA_EXIT, 1040, 101, 100);
	add_task(&rec, PERFDATA_FORK, 1050, 101, 1);
	fd = write_recording(&rec);
	ck_assert_int_eq(perfdata_open(&p, fd, NULL), 0);
	inj = inject_file(p, &opts, NULL, 0, true);
	ck_assert_uint_eq(inject_n_programs(inj), 4);
	ck_assert(inject_program(inj, 0)->sampled); /* by its fork */
	ck_assert(inject_program(inj, 0)->runtime);
	ck_assert(!inject_program(inj, 0)->ended);
	ck_assert_uint_eq(inject_program(inj, 1)->first_ns, 1010);
	ck_assert(inject_program(inj, 1)->ended); /* exec */
	ck_assert_uint_eq(inject_program(inj, 2)->first_ns, 1030);
	ck_assert_uint_eq(inject_program(inj, 2)->last_ns, 1040);
	ck_assert(inject_program(inj, 2)->ended);
	ck_assert_uint_eq(inject_program(inj, 3)->first_ns, 1050);
	ck_assert(!inject_program(inj, 3)->ended);
	close(fd);
	free(rec.records);
}
END_TEST

/* Without times the last known owner of an address answers. */
START_TEST(test_no_times)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source source = { 100, 0, map, 0 };
	struct inject_stats stats;

	load(map, false, 1, HEAP, 0x100, 500, FLAGS_JIT);
	codemap_unload(map, 1, HEAP, 600);
	load(map, false, 2, HEAP, 0x80, 700, FLAGS_JIT);
	add_map(&rec, 0, 100, HEAP, 0x1000, 0x10000, RUNTIME, 77);
	add_sample(&rec, 550, 100, HEAP + 8);
	add_sample(&rec, 560, 100, HEAP + 0x88);
	add_sample(&rec, 750, 100, HEAP + 8);
	expect(&rec, &source, 1, false, "100:N::m2 100: 100:N::m2 ", NULL);
	/* what went at the exit was the last there, all the same */
	codemap_unload(map, 2, HEAP, 800);
	expect(&rec, &source, 1, false, "100:N::m2 100: 100:N::m2 ", &stats);
	ck_assert_uint_eq(stats.managed, 2);
	ck_assert_uint_eq(stats.unnamed, 1);
	expect(&rec, &source, 1, true, "100:N::m1 100:N::m1 100:N::m2 ", NULL);
	free(rec.records);
	codemap_free(map);
}
END_TEST

/* perf -t does not see what other threads map. */
START_TEST(test_memory_without_record)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source source = { 100, 0, map, 0 };

	load(map, true, 1, HEAP + 0x10000, 0x100, 500, FLAGS_JIT);
	load(map, false, 2, HEAP + 0x20000, 0x100, 1005, FLAGS_JIT);
	add_map(&rec, 0, 100, HEAP, 0x1000, 0x10000, RUNTIME, 77);
	add_sample(&rec, 1000, 100, HEAP + 0x10008);
	add_sample(&rec, 1010, 100, HEAP + 0x20008);
	expect(&rec, &source, 1, true, "100:N::m1 100:N::m2 ", NULL);
	free(rec.records);
	codemap_free(map);
}
END_TEST

/* mprotect makes memory executable, and the record of it comes with the next change. */
START_TEST(test_late_record)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source source = { 100, 0, map, 0 };

	load(map, true, 1, HEAP + 0x1000, 0x100, 5000, FLAGS_JIT);
	add_map(&rec, 990, 100, HEAP, 0x1000, 0, "//anon", 0);
	add_sample(&rec, 1000, 100, HEAP + 0x1008);
	add_map(&rec, 1010, 100, HEAP, 0x2000, 0, "//anon", 0);
	add_sample(&rec, 1020, 100, HEAP + 0x1008);
	expect(&rec, &source, 1, true, "100:N::m1 100:N::m1 ", NULL);
	free(rec.records);
	codemap_free(map);
}
END_TEST

/* What can be freed and is known only from a rundown may not have been there before it. */
START_TEST(test_freeable)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source source = { 100, 0, map, 0 };
	struct inject_stats stats;

	load(map, true, 1, HEAP, 0x100, 1005, FLAGS_JIT | FLAGS_DYNAMIC);
	load(map, true, 2, HEAP + 0x100, 0x100, 1005, FLAGS_JIT);
	add_map(&rec, 0, 100, HEAP, 0x1000, 0x10000, RUNTIME, 77);
	add_sample(&rec, 1000, 100, HEAP + 8);
	add_sample(&rec, 1001, 100, HEAP + 0x108);
	add_sample(&rec, 1010, 100, HEAP + 8);
	expect(&rec, &source, 1, true, "100: 100:N::m2 100:N::m1 ", &stats);
	ck_assert_uint_eq(stats.managed, 2);
	ck_assert_uint_eq(stats.missed[CODEMAP_MISS_NOT_YET], 1);
	/* of a collectible assembly, too; whatever order that is told in */
	codemap_module(map, 1, 4711, "/x.dll", 6, 1005);
	codemap_collectible(map, 4711);
	expect(&rec, &source, 1, true, "100: 100: 100:N::m1 ", NULL);
	free(rec.records);
	codemap_free(map);
}
END_TEST

/* The heap of W^X off has no name; ours must not send perf to the perf map. */
START_TEST(test_anonymous)
{
	struct recording rec = { 0 };
	struct codemap *map = new_map();
	struct source source = { 100, 0, map, 0 };
	struct inject_stats stats;

	load(map, false, 1, HEAP, 0x100, 500, FLAGS_JIT);
	add_map(&rec, 0, 100, HEAP, 0x1000, 0, "//anon", 0);
	add_map(&rec, 990, 100, HEAP, 0x2000, HEAP, "//anon", 0);
	add_sample(&rec, 1000, 100, HEAP + 8);
	add_sample(&rec, 1010, 100, HEAP + 0x1008);
	expect(&rec, &source, 1, true, "100:N::m1 100: ", &stats);
	ck_assert_uint_eq(stats.rewritten, 2);
	ck_assert_uint_eq(stats.inserted, 1); /* the second record was cut to what it adds */
	ck_assert_uint_eq(stats.managed, 1);
	ck_assert_uint_eq(stats.unnamed, 1);
	free(rec.records);
	codemap_free(map);
}
END_TEST

START_TEST(test_nothing_to_do)
{
	struct recording rec = { 0 };
	struct perf *perf;
	uint8_t a[4096], b[4096];
	ssize_t n;
	int in, out;

	add_map(&rec, 0, 100, HEAP, 0x1000, 0, "/lib/libc.so.6", 9);
	add_sample(&rec, 1000, 100, HEAP + 8);
	add_round(&rec);
	in = write_recording(&rec);
	out = run_inject(&rec, NULL, 0, true, &perf, NULL);
	n = pread(in, a, sizeof(a), 0);
	ck_assert_int_gt(n, 0);
	ck_assert_int_eq(pread(out, b, sizeof(b), 0), n);
	ck_assert_mem_eq(a, b, (size_t)n);
	perf_free(perf);
	close(in);
	close(out);
	free(rec.records);
}
END_TEST

/* -- pages ----------------------------------------------------------------------------- */

START_TEST(test_pages)
{
	struct pages p;
	uint32_t i;

	pages_init(&p);
	ck_assert(!pages_any(&p, 1, 0, UINT64_MAX));
	for (i = 0; i < 5000; i++)
		ck_assert_int_eq(pages_mark(&p, 1 + i % 2, 0x1000 * (uint64_t)i + 0x123), 0);
	ck_assert_uint_eq(p.n, 5000);
	ck_assert_int_eq(pages_seal(&p), 0);
	ck_assert(pages_any(&p, 1, 0x120, 0x130));
	ck_assert(pages_any(&p, 1, 0x12f, 0x130));
	ck_assert(!pages_any(&p, 1, 0x130, 0x2120));
	ck_assert(!pages_any(&p, 1, 0x110, 0x120));
	ck_assert(!pages_any(&p, 2, 0x120, 0x130));
	ck_assert(pages_any(&p, 2, 0, 0x2000));
	ck_assert(pages_any(&p, 1, 0, UINT64_MAX));
	ck_assert(!pages_any(&p, 3, 0, UINT64_MAX));
	ck_assert(!pages_any(&p, 1, 0x130, 0x130));
	pages_deinit(&p);
}
END_TEST

/* Of bodies, the bytes from the first granule on: to the byte. */
START_TEST(test_pages_settled)
{
	struct pages p;
	uint64_t addr;

	pages_init(&p);
	ck_assert_int_eq(pages_mark(&p, 1, 0x1123), 0);
	ck_assert_int_eq(pages_mark(&p, 1, 0x2123), 0);
	ck_assert(!pages_is_settled(&p, 1, 0x1123, 100));
	ck_assert_int_eq(pages_settle(&p, 1, 0x1108, 0x1125, 10), 0);
	ck_assert_int_eq(pages_settle(&p, 1, 0x1126, 0x112f, 10), 0); /* no granule begins in it */
	ck_assert_int_eq(pages_settle(&p, 1, 0x1130, 0x1140, 10), 0);
	ck_assert_int_eq(pages_settle(&p, 1, 0x1ff0, 0x4001, 20), 0); /* 0x3000 was not hit */
	for (addr = 0x1000; addr < 0x5000; addr++) {
		bool want = (addr >= 0x1110 && addr < 0x1125) ||
			    (addr >= 0x1130 && addr < 0x1140) || (addr >= 0x1ff0 && addr < 0x3000);

		ck_assert_int_eq(pages_is_settled(&p, 1, addr, 20), want);
		ck_assert(!pages_is_settled(&p, 1, addr, 19));
		ck_assert(!pages_is_settled(&p, 2, addr, 20));
	}
	pages_deinit(&p);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("inject");
	TCase *t = tcase_create("inject");
	SRunner *runner;
	int failed;

	tcase_add_test(t, test_pages);
	tcase_add_test(t, test_pages_settled);
	tcase_add_test(t, test_nothing_to_do);
	tcase_add_test(t, test_file);
	tcase_add_test(t, test_foreign_file);
	tcase_add_test(t, test_pid_again);
	tcase_add_test(t, test_exec);
	tcase_add_test(t, test_fork);
	tcase_add_test(t, test_no_times);
	tcase_add_test(t, test_memory_without_record);
	tcase_add_test(t, test_anonymous);
	tcase_add_test(t, test_late_record);
	tcase_add_test(t, test_freeable);
	tcase_add_test(t, test_histories);
	suite_add_tcase(s, t);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
