/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long does it take to give a recording its names, once the code is known?
 *
 *   recordings   1,000,000 samples, with and without call chains: scan, plan, images into a
 * build-id cache and the changed copy into a file, in MB of input a second. The reference is the
 *                same I/O without any work: the file is read twice and written once. Both
 *                alternate in one run; figures are medians.
 *   images       1,239 samples and 150,000 code bodies: from inject_set_code() until everything is
 *                written, with the bodies that were hit only, and with all of them.
 *
 * The process is made up: bodies of 32 to 512 bytes in memory that grows page by page while it
 * is recorded, the last twentieth of them loaded meanwhile; a DLL with precompiled methods; some
 * samples in the kernel and in native code. Which bodies are hit follows Zipf's law.
 *
 *   bench_inject [ROUNDS [DIRECTORY [BODIES]]]   BODIES: of the recordings
 */
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/number.h"
#include "inject/inject.h"
#include "perfdata/buildid.h"

#define N_MANY     150000u /* the most there are */
#define N_USUAL    20000u  /* what a large service has */
#define N_READY    4000u
#define N_SAMPLES  1000000u
#define N_FEW      1239u
#define N_FRAMES   20u
#define N_ZIPF     65536u
#define N_THREADS  16u
#define ROUND      1000u /* samples between two FINISHED_ROUND */
#define MAX_ROUNDS 99u
#define CHUNK      524288u
#define PID        4711u
#define NATIVE     UINT64_C(0x7f54d1c03000)
#define DLL        UINT64_C(0x7f55e8a41000)
#define HEAP       UINT64_C(0x7f5693f2e000)
#define BEGIN_NS   UINT64_C(1000000000000)
#define STEP_NS    10101u
#define ATTR_SIZE  128u
#define EM_X86_64  62
#define FAST_MB_S  500.0
#define IMAGES_MS  300.0

struct body {
	uint64_t start;
	uint32_t size;
};

static struct body jitted[N_MANY], ready[N_READY];
/* of those that take part; loaded before the recording begins */
static uint32_t n_jitted, n_before;
static uint32_t zipf[N_ZIPF];
static uint64_t rng = 88172645463325252u;

static uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * n >> 32);
}

static void check(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "bench_inject: %s\n", what);
	exit(EXIT_FAILURE);
}

/* -- the code ------------------------------------------------------------------------- */

static void make_bodies(struct body *bodies, uint32_t n, uint64_t addr)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		bodies[i].start = addr;
		bodies[i].size = 32 + draw(481);
		addr = (addr + bodies[i].size + draw(32) + 15) & ~UINT64_C(15);
	}
}

/* How many there are, and which are hit: ranks are spread over all addresses. */
static void choose_bodies(uint32_t n)
{
	uint32_t i;

	n_jitted = n;
	n_before = n / 20 * 19;

	for (i = 0; i < N_ZIPF; i++) {
		double rank = pow(n_before, (double)draw(UINT32_MAX) / UINT32_MAX) - 1;

		zipf[i] = (uint32_t)((uint64_t)rank * 2654435761u % n_before);
	}
}

static uint64_t body_end(uint32_t i)
{
	return jitted[i].start + jitted[i].size;
}

static uint64_t page_up(uint64_t addr)
{
	return (addr + 4095) & ~UINT64_C(4095);
}

static uint64_t load_ns(uint32_t i, uint32_t n_samples)
{
	if (i < n_before)
		return BEGIN_NS / 2 + i;
	return BEGIN_NS + (uint64_t)(i - n_before) * n_samples * STEP_NS / (n_jitted - n_before);
}

static void load_body(struct codemap *map, const struct body *b, uint32_t i, bool jit,
		      uint64_t time)
{
	static const char *const sigs[] = {
		"void  ()",
		"instance void  ()",
		"class System.String  (int32,class System.String)",
		"instance class System.Threading.Tasks.Task`1<bool>  (class System.Object)",
	};
	char ns[96], name[96];
	struct codemap_load load = {
		.method_id = (jit ? 0x7e0000000000u : 0x7c0000000000u) + (uint64_t)i * 24,
		.module_id = 0x7d0000000000u + (jit ? i / 5000 * 4096 : 1),
		.start = b->start,
		.time = time,
		.size = b->size,
		.flags = jit ? 0x208 : 0,
		.token = 0x6000000 + i,
		.ns = ns,
		.name = name,
		.sig = sigs[i % ARRAY_SIZE(sigs)],
	};

	load.ns_len = (uint32_t)sprintf(ns, "Company.Product.Module%u.Service%u", i / 2000, i / 12);
	load.name_len = (uint32_t)sprintf(name, "HandleIncomingCustomerRequest%06uAsync", i);
	load.sig_len = (uint32_t)strlen(load.sig);
	check((jit ? codemap_load : codemap_rundown)(map, &load, NULL) == 0, "code map");
}

static struct codemap *make_map(uint32_t n_samples)
{
	struct codemap *map;
	uint32_t i;

	check(codemap_new(&map, NULL) == 0, "code map");
	for (i = 0; i < N_READY; i++)
		load_body(map, &ready[i], i, false, BEGIN_NS / 2);
	for (i = 0; i < n_jitted; i++)
		load_body(map, &jitted[i], i, true, load_ns(i, n_samples));
	return map;
}

static uint64_t same_time(void *clock, uint64_t ns)
{
	(void)clock;
	return ns;
}

static const uint8_t *bytes_of(void *data, const struct codemap_info *info)
{
	static uint8_t code[512];

	(void)data;
	(void)info;
	return code;
}

/* -- the recording -------------------------------------------------------------------- */

static void put(FILE *f, const void *bytes, size_t n)
{
	check(fwrite(bytes, 1, n, f) == n, "write");
}

static void put_map(FILE *f, uint64_t time, uint64_t addr, uint64_t len, const char *name)
{
	struct {
		struct perf_event_header header;
		uint32_t pid, tid;
		uint64_t addr, len, pgoff;
		uint32_t maj, min;
		uint64_t ino, generation;
		uint32_t prot, flags;
	} map = {
		.header = { PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER, 0 },
		.pid = PID,
		.tid = PID,
		.addr = addr,
		.len = len,
		.ino = addr >> 32,
		.prot = PROT_READ | PROT_EXEC,
		.flags = MAP_SHARED,
	};
	struct {
		uint32_t pid, tid;
		uint64_t time;
	} trailer = { PID, PID, time };
	char padded[128] = { 0 };
	size_t room = (strlen(name) + 8) & ~(size_t)7;

	snprintf(padded, sizeof(padded), "%s", name);
	map.header.size = (uint16_t)(sizeof(map) + room + sizeof(trailer));
	put(f, &map, sizeof(map));
	put(f, padded, room);
	put(f, &trailer, sizeof(trailer));
}

static void put_header(FILE *f, bool chains, uint64_t data_size)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = ATTR_SIZE,
		.sample_freq = 99000,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME |
			       PERF_SAMPLE_PERIOD | (chains ? PERF_SAMPLE_CALLCHAIN : 0),
		.freq = 1,
		.mmap = 1,
		.mmap2 = 1,
		.comm = 1,
		.comm_exec = 1,
		.task = 1,
		.sample_id_all = 1,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
	};
	uint64_t header[13] = { 0 }, ids[2] = { 104, 0 };

	memcpy(header, "PERFILE2", 8);
	header[1] = sizeof(header);
	header[2] = ATTR_SIZE + sizeof(ids);
	header[3] = sizeof(header);
	header[4] = ATTR_SIZE + sizeof(ids);
	header[5] = sizeof(header) + ATTR_SIZE + sizeof(ids);
	header[6] = data_size;
	put(f, header, sizeof(header));
	put(f, &attr, ATTR_SIZE);
	put(f, ids, sizeof(ids));
}

/* An address in a body that exists after n of n_samples. */
static uint64_t code_address(uint32_t n, uint32_t n_samples)
{
	uint32_t n_new = (uint32_t)((uint64_t)n * (n_jitted - n_before) / n_samples);
	const struct body *b;

	if (draw(8) == 0)
		b = &ready[draw(N_READY)];
	else if (n_new && draw(20) == 0)
		b = &jitted[n_before + draw(n_new)];
	else
		b = &jitted[zipf[draw(N_ZIPF)]];
	return b->start + draw(b->size);
}

static uint64_t stacks[N_THREADS][N_FRAMES];

/* Samples: of 100 in the kernel 10, in native code 10, the others in bodies. */
static void put_sample(FILE *f, uint32_t n, uint32_t n_samples, bool chains)
{
	struct {
		struct perf_event_header header;
		uint64_t ip;
		uint32_t pid, tid;
		uint64_t time, period, n_chain, marker, chain[N_FRAMES];
	} s = {
		.header = { PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER,
			    chains ? sizeof(s) : offsetof(typeof(s), n_chain) },
		.pid = PID,
		.tid = PID + draw(N_THREADS),
		.time = BEGIN_NS + ((uint64_t)n + 1) * STEP_NS,
		.period = STEP_NS,
		.n_chain = 1 + N_FRAMES,
		.marker = PERFDATA_CONTEXT_USER,
	};
	uint64_t *stack = stacks[s.tid - PID];
	uint32_t i, kind = draw(100);

	for (i = 0; chains && i < N_FRAMES; i++) {
		stack[i] = code_address(n, n_samples) + 1; /* behind a call */
		if (n >= N_THREADS * ROUND && draw(4) == 0)
			break; /* its callers are those of the last sample */
	}
	memcpy(s.chain, stack, sizeof(s.chain));
	s.ip = kind < 80   ? code_address(n, n_samples)
	       : kind < 90 ? NATIVE + draw(1 << 20)
			   : UINT64_C(0xffffffff81000000) + draw(1 << 20);
	if (kind >= 90)
		s.header.misc = PERF_RECORD_MISC_KERNEL;
	if (kind < 90)
		s.chain[0] = s.ip;
	put(f, &s, s.header.size);
}

static void put_heap(FILE *f, uint64_t time, uint64_t end)
{
	put_map(f, time, HEAP, end - HEAP, "/memfd:doublemapper (deleted)");
}

static void put_records(FILE *f, uint32_t n_samples, bool chains)
{
	static const struct perf_event_header round = { PERFDATA_FINISHED_ROUND, 0, 8 };
	uint64_t end = page_up(body_end(n_before - 1));
	uint32_t i, n = n_before;

	put_map(f, 0, NATIVE, 1 << 23, "/usr/share/dotnet/shared/x/libcoreclr.so");
	put_map(f, 0, DLL, 1 << 21, "/usr/share/dotnet/shared/x/System.Private.CoreLib.dll");
	put_heap(f, 0, end);
	for (i = 0; i < n_samples; i++) {
		uint64_t time = BEGIN_NS + (uint64_t)i * STEP_NS;

		/* the memory is there before what is loaded into it */
		for (; n < n_jitted && load_ns(n, n_samples) <= time + STEP_NS; n++) {
			if (body_end(n) <= end)
				continue;
			end = page_up(body_end(n));
			put_heap(f, time, end);
		}
		put_sample(f, i, n_samples, chains);
		if (i % ROUND == ROUND - 1)
			put(f, &round, sizeof(round));
	}
}

static void make_recording(const char *path, uint32_t n_samples, bool chains)
{
	FILE *f = fopen(path, "we");
	long begin;

	check(f, path);
	put_header(f, chains, 0);
	begin = ftell(f);
	put_records(f, n_samples, chains);
	begin = ftell(f) - begin;
	rewind(f);
	put_header(f, chains, (uint64_t)begin);
	check(fclose(f) == 0, path);
}

/* -- measuring ------------------------------------------------------------------------ */

struct bench {
	char dir[512]; /* everything is below it, and goes with it */
	char in[600], out[600], cache[600];
	const struct codemap *map;
	bool all_bodies;
	/* of the last run */
	struct inject_stats stats;
	uint64_t set_ns; /* when the code was given */
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_all(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int write_image(int fd, void *data)
{
	return elf_image_write(data, fd);
}

static void put_images(const struct bench *b, const struct inject *inj)
{
	_cleanup_(buildid_cache_freep) struct buildid_cache *cache = NULL;
	size_t i;

	check(buildid_cache_open(&cache, b->cache) == 0, b->cache);
	for (i = 0; i < inject_n_images(inj); i++) {
		const uint8_t *id;
		const char *label;
		const struct elf_image *image = inject_image(inj, i, &label, &id);
		union {
			const struct elf_image *in;
			void *out;
		} arg = { image };

		check(!image || buildid_cache_add(cache, label, id, write_image, arg.out) == 0,
		      label);
	}
}

/* All of inject, once; returns when it was done. */
static uint64_t run_inject(struct bench *b)
{
	const struct inject_options opts = { .all_bodies = b->all_bodies };
	const struct inject_code code = {
		.map = b->map,
		.machine = EM_X86_64,
		.bytes = bytes_of,
		.to_file_ns = same_time,
		.to_map_ns = same_time,
	};
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(inject_freep) struct inject *inj = NULL;
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int in = open(b->in, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int out = open(b->out, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	uint64_t done;
	size_t i;

	check(in >= 0 && out >= 0, b->in);
	check(perfdata_open(&p, in, NULL) == 0, "perfdata_open");
	check(inject_new(&inj, &opts) == 0, "inject_new");
	check(inject_scan(inj, p) == 0, "inject_scan");
	check(inject_scanned(inj) == 0, "inject_scanned");
	b->set_ns = clock_now_ns();
	for (i = 0; i < inject_n_programs(inj); i++)
		if (inject_program(inj, i)->runtime)
			inject_set_code(inj, i, &code);
	check(inject_plan(inj) == 0, "inject_plan");
	put_images(b, inj);
	check(perfdata_writer_new(&w, p, out) == 0, "perfdata_writer_new");
	check(inject_rewrite(inj, p, w) == 0, "inject_rewrite");
	check(perfdata_writer_finish(w) == 0, "perfdata_writer_finish");
	done = clock_now_ns();
	inject_get_stats(inj, &b->stats);
	return done;
}

/* The same I/O: everything is read, then read again and written. */
static uint64_t run_copy(const struct bench *b)
{
	_cleanup_close_ int in = open(b->in, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int out = open(b->out, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	_cleanup_free_ uint8_t *bytes = malloc(CHUNK);
	off_t at;
	ssize_t n;

	check(in >= 0 && out >= 0 && bytes, b->in);
	for (at = 0; (n = pread(in, bytes, CHUNK, at)) > 0; at += n)
		;
	for (at = 0; (n = pread(in, bytes, CHUNK, at)) > 0; at += n)
		check(write(out, bytes, (size_t)n) == n, b->out);
	return clock_now_ns();
}

static void clean(const struct bench *b)
{
	unlink(b->out);
	remove_all(b->cache);
}

static int compare_double(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static double median(double *v, unsigned int n)
{
	qsort(v, n, sizeof(*v), compare_double);
	return v[n / 2];
}

static double measure_recording(struct bench *b, const char *what, bool chains, unsigned int rounds)
{
	double ours[MAX_ROUNDS], copies[MAX_ROUNDS], ratios[MAX_ROUNDS], mb;
	struct stat st;
	unsigned int i;

	make_recording(b->in, N_SAMPLES, chains);
	check(stat(b->in, &st) == 0, b->in);
	mb = (double)st.st_size / 1e6;
	for (i = 0; i < rounds; i++) {
		uint64_t begin = clock_now_ns();

		copies[i] = mb / ((double)(run_copy(b) - begin) / 1e9);
		clean(b);
		begin = clock_now_ns();
		ours[i] = mb / ((double)(run_inject(b) - begin) / 1e9);
		clean(b);
		ratios[i] = ours[i] / copies[i];
	}
	check(b->stats.samples == N_SAMPLES && !b->stats.unnamed && !b->stats.no_code &&
		      b->stats.managed > N_SAMPLES / 10 * 7,
	      "samples without names");
	median(ours, rounds);
	printf("%s, %u bodies: %.0f MB, inject %.0f MB/s (%.0f to %.0f), the same I/O alone %.0f "
	       "MB/s, ratio "
	       "%.2f; %" PRIu64 " bodies in images, %" PRIu64 " records inserted\n",
	       what, n_jitted + N_READY, mb, ours[rounds / 2], ours[0], ours[rounds - 1],
	       median(copies, rounds), median(ratios, rounds), b->stats.bodies, b->stats.inserted);
	return ours[rounds / 2];
}

static unsigned int n_files;
static uint64_t file_bytes;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path;
	(void)ftw;
	if (type == FTW_F) {
		n_files++;
		file_bytes += (uint64_t)st->st_size;
	}
	return 0;
}

static double measure_images(struct bench *b, const char *what, bool all, unsigned int rounds)
{
	double ms[MAX_ROUNDS];
	unsigned int i;

	b->all_bodies = all;
	for (i = 0; i < rounds; i++) {
		ms[i] = (double)(run_inject(b) - b->set_ns) / 1e6;
		n_files = 0;
		file_bytes = 0;
		nftw(b->cache, count_one, 16, FTW_PHYS);
		clean(b);
	}
	median(ms, rounds);
	printf("%u samples, %s: %.1f ms (%.1f to %.1f); %" PRIu64 " bodies in %u files, %.1f MB\n",
	       N_FEW, what, ms[rounds / 2], ms[0], ms[rounds - 1], b->stats.bodies, n_files,
	       (double)file_bytes / 1e6);
	return ms[rounds / 2];
}

int main(int argc, char **argv)
{
	static struct bench b;
	struct codemap *map;
	double plain, chains, hits, all;
	uint64_t rounds = 5, n = N_USUAL;

	check(argc < 2 || (parse_u64(argv[1], MAX_ROUNDS, &rounds) && rounds), "bad ROUNDS");
	check(argc < 4 || (parse_u64(argv[3], N_MANY, &n) && n >= 1000), "bad BODIES");
	snprintf(b.dir, sizeof(b.dir), "%s/bench-inject.XXXXXX", argc > 2 ? argv[2] : "build");
	check(mkdtemp(b.dir), b.dir);
	snprintf(b.in, sizeof(b.in), "%s/in", b.dir);
	snprintf(b.out, sizeof(b.out), "%s/out", b.dir);
	snprintf(b.cache, sizeof(b.cache), "%s/cache", b.dir);
	make_bodies(ready, N_READY, DLL);
	make_bodies(jitted, N_MANY, HEAP);

	choose_bodies((uint32_t)n);
	b.map = map = make_map(N_SAMPLES);
	plain = measure_recording(&b, "plain samples", false, (unsigned int)rounds);
	chains = measure_recording(&b, "samples with 20 frames", true, (unsigned int)rounds);
	codemap_free(map);

	choose_bodies(N_MANY);
	b.map = map = make_map(N_FEW);
	make_recording(b.in, N_FEW, false);
	hits = measure_images(&b, "bodies that were hit", false, (unsigned int)rounds);
	all = measure_images(&b, "all bodies", true, (unsigned int)rounds);
	codemap_free(map);
	remove_all(b.dir);

	printf("budget: %.0f and %.0f MB/s (>= %.0f): %s\n", plain, chains, FAST_MB_S,
	       plain >= FAST_MB_S && chains >= FAST_MB_S ? "kept" : "MISSED");
	printf("budget: %.1f and %.1f ms (< %.0f): %s\n", hits, all, IMAGES_MS,
	       hits < IMAGES_MS && all < IMAGES_MS ? "kept" : "MISSED");
	return 0; /* a noisy machine is no failure */
}
