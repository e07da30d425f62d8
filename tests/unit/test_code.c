/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code bytes and the reads behind them, of this very process.
 *
 * The main test is test_history: a runtime in miniature writes code, frees and reuses it and tells
 * of it late and out of order; whatever is given out in the end must be what the body had.
 */
#include "target/code.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"
#include "target/peek.h"

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * n >> 32);
}

static uint8_t *pages(size_t n)
{
	uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

/* A page of a mapping that nothing can be read from. */
static void make_hole(uint8_t *page)
{
	int fd = memfd_create("hole", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_ptr_eq(mmap(page, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0), page);
	close(fd);
}

/* -- Reads ---------------------------------------------------------------------------------- */

static struct peek *peek_try(pid_t pid, int *resultp)
{
	struct peek *peek = NULL;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	*resultp = peek_new(&peek, fd);
	return peek;
}

static struct peek *peek_at(pid_t pid)
{
	struct peek *peek;
	int r;

	peek = peek_try(pid, &r);
	ck_assert_int_eq(r, 0);
	return peek;
}

START_TEST(test_peek)
{
	struct peek *peek = peek_at(getpid());
	uint8_t *p = pages(3 * 4096);
	const uint8_t *bytes = NULL;
	uint32_t i;
	size_t n;

	for (i = 0; i < 2 * 4096; i++)
		p[i] = (uint8_t)(i * 7);
	make_hole(p + 2 * 4096);
	for (i = 1; i <= 2 * 4096; i = i * 3 + 1) {
		ck_assert_int_eq(peek_read(peek, (uintptr_t)p, i, &bytes, &n), 0);
		ck_assert_uint_eq(n, i);
		ck_assert_mem_eq(bytes, p, n);
	}
	/* to the end of what there is, and beyond */
	ck_assert_int_eq(peek_read(peek, (uintptr_t)p + 4096, 3 * 4096, &bytes, &n), 0);
	ck_assert_uint_eq(n, 4096);
	ck_assert_int_eq(peek_read(peek, (uintptr_t)p + 2 * 4096, 16, &bytes, &n), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(peek_read(peek, UINT64_MAX - 8, 16, &bytes, &n), 0);
	ck_assert_uint_eq(n, 0);
	peek_free(peek);
}
END_TEST

START_TEST(test_peek_of_the_dead)
{
	const uint8_t *bytes = NULL;
	struct peek *peek;
	pid_t pid;
	size_t n;

	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid)
		for (;;)
			pause();
	peek = peek_at(pid);
	ck_assert_int_eq(peek_read(peek, (uintptr_t)&rng, 8, &bytes, &n), 0);
	ck_assert_uint_eq(n, 8);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_int_eq(peek_read(peek, (uintptr_t)&rng, 8, &bytes, &n), 0);
	ck_assert_uint_eq(n, 0);
	peek_free(peek);
}
END_TEST

/*
 * Memory that does not answer: a file on a file system that takes every question and answers none
 * about contents. Its only file is its root, so there is nothing to look up.
 */
struct silent {
	char path[32];
	uint64_t memory;
	/* processes of their own: what waits for the one ends with it, and blocks the other's maps
	 */
	pid_t server, owner;
};

static NORETURN void silent_serve(int fuse_fd)
{
	static uint8_t request[1 << 18];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		const struct fuse_in_header *in = (const void *)request;
		struct {
			struct fuse_out_header head;
			union {
				struct fuse_init_out init;
				struct fuse_attr_out attr;
				struct fuse_open_out open;
			};
		} out = { 0 };
		size_t n = sizeof(out.head);

		if (read(fuse_fd, request, sizeof(request)) < 0)
			_exit(1);
		if (in->opcode == FUSE_READ)
			continue;
		out.head.unique = in->unique;
		if (in->opcode == FUSE_INIT) {
			out.init = (struct fuse_init_out){ .major = FUSE_KERNEL_VERSION,
							   .minor = 31,
							   .max_write = 4096 };
			n += sizeof(out.init);
		} else if (in->opcode == FUSE_GETATTR) {
			out.attr.attr = (struct fuse_attr){
				.ino = 1, .mode = S_IFREG | 0444, .size = MIB(1), .nlink = 1
			};
			n += sizeof(out.attr);
		} else if (in->opcode == FUSE_OPEN) {
			n += sizeof(out.open);
		} else {
			out.head.error = -ENOSYS;
		}
		out.head.len = (uint32_t)n;
		if (write(fuse_fd, &out, n) < 0)
			_exit(1);
	}
}

static NORETURN void silent_own(const char *path, int out_fd)
{
	struct stat st;
	uint64_t address;
	void *memory;
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	/* fstat() asks for the size */
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size != MIB(1))
		_exit(1);
	memory = mmap(NULL, MIB(1), PROT_READ, MAP_PRIVATE, fd, 0);
	address = (uintptr_t)memory;
	if (memory == MAP_FAILED || write(out_fd, &address, sizeof(address)) < 0)
		_exit(1);
	for (;;)
		pause();
}

/* False where that is not allowed. */
static bool silent_open(struct silent *silent)
{
	int fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC), pipes[2];
	char options[64];

	*silent = (struct silent){ .path = "/tmp/test-code-XXXXXX" };
	close(mkstemp(silent->path));
	snprintf(options, sizeof(options), "fd=%d,rootmode=100000,user_id=0,group_id=0", fuse_fd);
	if (fuse_fd < 0 || mount("test", silent->path, "fuse", 0, options) < 0) {
		printf("skipped: no FUSE for us\n");
		fd_close(fuse_fd);
		unlink(silent->path);
		return false;
	}
	silent->server = fork();
	ck_assert_int_ge(silent->server, 0);
	if (!silent->server)
		silent_serve(fuse_fd);
	close(fuse_fd);
	ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
	silent->owner = fork();
	ck_assert_int_ge(silent->owner, 0);
	if (!silent->owner)
		silent_own(silent->path, pipes[1]);
	close(pipes[1]);
	ck_assert_int_eq(read(pipes[0], &silent->memory, sizeof(silent->memory)),
			 sizeof(silent->memory));
	close(pipes[0]);
	umount2(silent->path, MNT_DETACH);
	unlink(silent->path);
	return true;
}

static void silent_close(struct silent *silent)
{
	kill(silent->server, SIGKILL);
	ck_assert_int_eq(waitpid(silent->server, NULL, 0), silent->server);
	kill(silent->owner, SIGKILL);
	ck_assert_int_eq(waitpid(silent->owner, NULL, 0), silent->owner);
}

START_TEST(test_peek_without_answer)
{
	const uint8_t *bytes = NULL;
	struct silent silent;
	struct peek *peek;
	uint64_t before;
	int i, r;
	size_t n;

	if (!silent_open(&silent))
		return;
	peek = peek_at(silent.owner);
	before = clock_now_ns();
	ck_assert_int_eq(peek_read(peek, silent.memory, 16, &bytes, &n), PEEK_E_STUCK);
	ck_assert_uint_ge(clock_now_ns() - before, MS_NS(90));
	/* the second time at once, whatever is asked for */
	before = clock_now_ns();
	ck_assert_int_eq(peek_read(peek, silent.memory + 8192, 8, &bytes, &n), PEEK_E_STUCK);
	ck_assert_uint_lt(clock_now_ns() - before, MS_NS(50));
	peek_free(peek);

	/* no more than some are ever left behind */
	for (i = 0; i < 40; i++) {
		peek = peek_try(silent.owner, &r);
		if (r)
			break;
		r = peek_read(peek, silent.memory, 16, &bytes, &n);
		ck_assert_int_eq(r, PEEK_E_STUCK);
		peek_free(peek);
	}
	ck_assert_int_eq(r, PEEK_E_STUCK);
	ck_assert_int_lt(i, 40);
	/* and when the memory answers after all, they end */
	silent_close(&silent);
	for (i = 0; i < 1000; i++) {
		peek = peek_try(getpid(), &r);
		if (r == 0)
			break;
		usleep(1000);
	}
	ck_assert_int_eq(r, 0);
	peek_free(peek);
	usleep(50000);
}
END_TEST

/* -- One store ------------------------------------------------------------------------------ */

static struct loop *loop;
static struct proc *self;
static struct codemap *map;
static struct code *code;
static uint64_t ids;

static void setup(void)
{
	ck_assert_int_eq(loop_new(&loop), 0);
	ck_assert_int_eq(proc_open(getpid(), &self), 0);
	ck_assert_int_eq(codemap_new(&map, NULL), 0);
	codemap_set_retention(map, SIZE_MAX, UINT64_MAX);
	ck_assert_int_eq(code_new(&code, loop, self, map), 0);
}

static void teardown(void)
{
	code_free(code);
	codemap_free(map);
	proc_close(self);
	loop_free(loop);
}

static bool on_turn(struct loop_work *work UNUSED, uint64_t deadline_ns UNUSED)
{
	static uint32_t turns;

	if (++turns % 256)
		return true;
	loop_stop(loop, 0);
	return false;
}

/* All that waits is read: each of our turns is followed by one of theirs. */
static void settle(void)
{
	struct loop_work work = { 0 };

	loop_work_add(loop, &work, on_turn);
	ck_assert_int_eq(loop_run(loop), 0);
}

static struct codemap_info load(const void *start, uint32_t size, uint64_t time)
{
	struct codemap_load event = { .method_id = ++ids,
				      .start = (uintptr_t)start,
				      .size = size,
				      .time = time,
				      .ns = "N",
				      .ns_len = 1,
				      .name = "m",
				      .name_len = 1 };
	struct codemap_body *body = NULL;
	struct codemap_info info;

	ck_assert_int_eq(codemap_load(map, &event, &body), 0);
	codemap_body_info(map, body, &info);
	return info;
}

static struct code_stats stats_now(void)
{
	struct code_stats stats;

	code_get_stats(code, &stats);
	return stats;
}

START_TEST(test_wanted)
{
	struct codemap_info infos[300];
	uint8_t *p = pages(1 << 20);
	const uint8_t *bytes;
	uint32_t i, n = ARRAY_SIZE(infos), at = 0;

	for (i = 0; i < 1 << 20; i++)
		p[i] = (uint8_t)draw(256);
	for (i = 0; i < n; i++) {
		uint32_t size = 1 + draw(i % 50 ? 300 : 70000);

		infos[i] = load(p + at, size, clock_now_ns());
		at += size + draw(i % 10 ? 32 : 5000);
		ck_assert_int_eq(code_get(code, &infos[i], UINT64_MAX, &bytes), CODE_E_NONE);
		code_want(code, &infos[i]);
		if (i % 7 == 0)
			code_want(code, &infos[i]);
	}
	ck_assert_uint_lt(at, 1 << 20);
	settle();
	for (i = 0; i < n; i++) {
		ck_assert_int_eq(code_get(code, &infos[i], UINT64_MAX, &bytes), 0);
		ck_assert_mem_eq(bytes, (uint8_t *)(uintptr_t)infos[i].start, infos[i].size);
		/* not before all is known of the time when it was read */
		ck_assert_int_eq(code_get(code, &infos[i], infos[i].load, &bytes), CODE_E_NOT_YET);
	}
	ck_assert_uint_eq(stats_now().bodies, n);
	/* they outlive their body, and their memory */
	for (i = 0; i < n; i++)
		codemap_unload(map, infos[i].method_id, infos[i].start, clock_now_ns());
	munmap(p, 1 << 20);
	for (i = 0; i < n; i++)
		ck_assert_int_eq(code_get(code, &infos[i], UINT64_MAX, &bytes), 0);
	ck_assert_uint_eq(stats_now().unreadable, 0);
}
END_TEST

START_TEST(test_keep)
{
	struct codemap_info info, gone;
	uint8_t *p = pages(4096);
	const uint8_t *bytes;

	memset(p, 0xcc, 64);
	info = load(p, 64, clock_now_ns());
	ck_assert_int_eq(code_keep(code, &info), 0);
	memset(p, 0x90, 64);
	ck_assert_int_eq(code_keep(code, &info), 0);
	ck_assert_int_eq(code_get(code, &info, UINT64_MAX, &bytes), 0);
	ck_assert_uint_eq(bytes[0], 0xcc);
	ck_assert_uint_eq(stats_now().bodies, 1);

	gone = load(p + 128, 64, clock_now_ns());
	code_want(code, &gone);
	codemap_unload(map, gone.method_id, gone.start, clock_now_ns());
	ck_assert_int_eq(code_keep(code, &gone), CODE_E_DOUBT);
	settle();
	ck_assert_int_eq(code_get(code, &gone, UINT64_MAX, &bytes), CODE_E_NONE);
	ck_assert_uint_eq(stats_now().gone, 1);

	/* of a time to come, by a clock that lies */
	info = load(p + 256, 64, clock_now_ns() + SEC_NS(10));
	ck_assert_int_eq(code_keep(code, &info), CODE_E_DOUBT);
}
END_TEST

/* What comes to be known later takes back what was given before. */
START_TEST(test_doubt)
{
	struct codemap_info info[4];
	uint8_t *p = pages(4096);
	const uint8_t *bytes;
	uint64_t before, after;
	uint32_t i;

	for (i = 0; i < 4; i++)
		info[i] = load(p + i * 64, 64, clock_now_ns());
	before = clock_now_ns();
	for (i = 0; i < 4; i++) {
		ck_assert_int_eq(code_keep(code, &info[i]), 0);
		ck_assert_int_eq(code_get(code, &info[i], UINT64_MAX, &bytes), 0);
	}
	after = clock_now_ns();

	/* it had been unloaded; another one had been loaded there; or this was after the read */
	codemap_unload(map, info[0].method_id, info[0].start, before);
	load(p + 64 + 60, 4, before);
	codemap_unload(map, info[2].method_id, info[2].start, after);
	ck_assert_int_eq(code_get(code, &info[0], UINT64_MAX, &bytes), CODE_E_DOUBT);
	ck_assert_int_eq(code_get(code, &info[1], UINT64_MAX, &bytes), CODE_E_DOUBT);
	ck_assert_int_eq(code_get(code, &info[2], UINT64_MAX, &bytes), 0);
	ck_assert_int_eq(code_get(code, &info[3], UINT64_MAX, &bytes), 0);

	/* another body than the one that was there */
	info[3].method_id++;
	ck_assert_int_eq(code_get(code, &info[3], UINT64_MAX, &bytes), CODE_E_DOUBT);
	info[3].method_id--;

	/* events were lost: before, after, in between */
	codemap_gap(map, 1, info[3].load - 1);
	codemap_gap(map, clock_now_ns(), clock_now_ns() + 1);
	ck_assert_int_eq(code_get(code, &info[3], UINT64_MAX, &bytes), 0);
	codemap_gap(map, before, before);
	ck_assert_int_eq(code_get(code, &info[3], UINT64_MAX, &bytes), CODE_E_DOUBT);
	ck_assert_int_eq(code_keep(code, &info[3]), CODE_E_DOUBT);
}
END_TEST

/* Seen in a rundown: what was lost before does not matter. */
START_TEST(test_open_past)
{
	uint8_t *p = pages(4096);
	struct codemap_load event = { .method_id = 1,
				      .start = (uintptr_t)p,
				      .size = 100,
				      .ns = "N",
				      .ns_len = 1,
				      .time = clock_now_ns() };
	struct codemap_body *body = NULL;
	struct codemap_info info;
	const uint8_t *bytes;

	codemap_gap(map, 10, event.time - 1);
	ck_assert_int_eq(codemap_rundown(map, &event, &body), 0);
	codemap_body_info(map, body, &info);
	ck_assert_int_eq(code_keep(code, &info), 0);
	ck_assert_int_eq(code_get(code, &info, UINT64_MAX, &bytes), 0);
}
END_TEST

START_TEST(test_holes)
{
	struct codemap_info infos[40];
	uint8_t *p = pages(16 * 4096);
	const uint8_t *bytes;
	uint32_t i, bad = 0;

	memset(p, 0x5a, 16 * 4096);
	for (i = 0; i < 16; i += 3)
		make_hole(p + i * 4096);
	for (i = 0; i < ARRAY_SIZE(infos); i++) {
		infos[i] = load(p + i * 1638, 1000, clock_now_ns());
		code_want(code, &infos[i]);
	}
	settle();
	for (i = 0; i < ARRAY_SIZE(infos); i++) {
		bool hole = i * 1638 / 4096 % 3 == 0 || (i * 1638 + 999) / 4096 % 3 == 0;

		ck_assert_int_eq(code_get(code, &infos[i], UINT64_MAX, &bytes),
				 hole ? CODE_E_NONE : 0);
		if (!hole)
			ck_assert(bytes[0] == 0x5a && bytes[999] == 0x5a);
		bad += hole;
	}
	ck_assert_uint_eq(stats_now().unreadable, bad);
	ck_assert_int_eq(code_keep(code, &infos[0]), CODE_E_UNREADABLE);
}
END_TEST

START_TEST(test_caps)
{
	uint32_t size = 1 << 20, n = 0, i;
	uint8_t *p = pages(CAP_CODE_BYTES * 2);
	const uint8_t *bytes;
	struct codemap_info info, small;
	int r;

	info = load(p, CAP_CODE_BODY + 1, clock_now_ns());
	ck_assert_int_eq(code_keep(code, &info), CODE_E_FULL);
	do {
		info = load(p + (size_t)n * size, size, clock_now_ns());
		r = code_keep(code, &info);
		ck_assert(r == 0 || r == CODE_E_FULL);
		n += !r;
	} while (!r);
	ck_assert_uint_eq(n, CAP_CODE_BYTES / size - 1);
	ck_assert_uint_eq(stats_now().full, 2);
	ck_assert_uint_le(stats_now().memory, CAP_CODE_BYTES + MIB(1));
	/* what still fits is still taken, records and all */
	for (i = 0; i < 100000; i++) {
		small = load(p + CAP_CODE_BYTES + i * 2, 1, clock_now_ns());
		r = code_keep(code, &small);
		if (r)
			break;
	}
	ck_assert_int_eq(r, CODE_E_FULL);
	ck_assert_uint_gt(i, 10000);
	ck_assert_uint_le(stats_now().memory, CAP_CODE_BYTES + MIB(1));
	ck_assert_int_eq(code_get(code, &small, UINT64_MAX, &bytes), CODE_E_NONE);

	/* no more than so many wait */
	for (i = 0; i < CAP_CODE_PENDING + 10; i++)
		code_want(code, &small);
	ck_assert_uint_eq(stats_now().full, 3 + 10);
}
END_TEST

/* A process whose memory does not answer costs a moment, once, and nobody else anything. */
START_TEST(test_stuck)
{
	struct codemap_info info;
	struct silent silent;
	struct proc *owner;
	uint64_t before;
	int i;

	if (!silent_open(&silent))
		return;
	ck_assert_int_eq(proc_open(silent.owner, &owner), 0);
	code_free(code);
	ck_assert_int_eq(code_new(&code, loop, owner, map), 0);
	for (i = 0; i < 200; i++) {
		info = load((void *)(uintptr_t)(silent.memory + i * 4096), 16, clock_now_ns());
		code_want(code, &info);
	}
	before = clock_now_ns();
	settle();
	ck_assert_uint_eq(stats_now().unreadable, 200);
	ck_assert_int_eq(code_keep(code, &info), CODE_E_UNREADABLE);
	ck_assert_uint_lt(clock_now_ns() - before, MS_NS(400));
	silent_close(&silent);
	code_free(code);
	code = NULL;
	proc_close(owner);
}
END_TEST

/* -- A runtime in miniature ------------------------------------------------------------------ */

#define HEAP  4096u
#define LIVES 20000u

struct life {
	uint64_t load, unload, deliver_load, deliver_unload;
	uint32_t at, size;
	uint8_t fill;
	bool loaded, unloaded;
	struct codemap_info info;
};

static struct life lives[LIVES];

static void deliver(struct life *l, uint8_t *heap, uint64_t now)
{
	if (!l->loaded && l->deliver_load <= now) {
		l->info = load(heap + l->at, l->size, l->load);
		l->loaded = true;
		code_want(code, &l->info);
	}
	if (l->loaded && !l->unloaded && l->unload && l->deliver_unload <= now) {
		codemap_unload(map, l->info.method_id, l->info.start, l->unload);
		l->unloaded = true;
	}
}

/* Code is there before its load and is gone only after its unload; events come up to 3 ms late. */
START_TEST(test_history)
{
	uint64_t end = clock_now_ns() + MS_NS(1500);
	uint32_t n = 0, first = 0, i, right = 0, past = 0;
	const uint8_t *bytes;
	uint8_t *heap = pages(HEAP);
	static uint32_t owner[HEAP / 64]; /* life + 1 */

	memset(owner, 0, sizeof(owner));
	while (clock_now_ns() < end && n < LIVES) {
		uint32_t slot = draw(HEAP / 64);
		struct life *l = &lives[n];

		if (owner[slot]) {
			struct life *old = &lives[owner[slot] - 1];

			old->unload = clock_now_ns();
			old->deliver_unload =
				MAX(old->unload, old->deliver_load) + MS_NS(3) * draw(1000) / 1000;
			memset(heap + slot * 64, 0, 64);
		}
		*l = (struct life){ .at = slot * 64, .size = 1 + draw(64) };
		l->fill = (uint8_t)(1 + draw(255));
		memset(heap + l->at, l->fill, l->size);
		l->load = clock_now_ns();
		l->deliver_load = l->load + MS_NS(3) * draw(1000) / 1000;
		owner[slot] = ++n;
		for (i = first; i < n; i++)
			deliver(&lives[i], heap, clock_now_ns());
		while (first < n && lives[first].unloaded)
			first++;
		if (draw(4) == 0)
			settle();
	}
	for (i = 0; i < n; i++)
		deliver(&lives[i], heap, UINT64_MAX);
	settle();
	for (i = 0; i < n; i++) {
		uint32_t j;

		if (code_get(code, &lives[i].info, UINT64_MAX, &bytes))
			continue;
		right++;
		past += lives[i].unloaded;
		for (j = 0; j < lives[i].size; j++)
			ck_assert_msg(bytes[j] == lives[i].fill, "life %u of %u", i, n);
	}
	printf("%u bodies, %u with bytes, %u of them past\n", n, right, past);
	ck_assert_uint_gt(past, n / 10);
	ck_assert_uint_lt(right, n);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("code");
	TCase *reads = tcase_create("reads"), *store = tcase_create("store");
	SRunner *r;
	int failed;

	tcase_set_timeout(reads, 60);
	tcase_set_timeout(store, 60);
	tcase_add_checked_fixture(store, setup, teardown);
	tcase_add_test(reads, test_peek);
	tcase_add_test(reads, test_peek_of_the_dead);
	tcase_add_test(reads, test_peek_without_answer);
	tcase_add_test(store, test_wanted);
	tcase_add_test(store, test_keep);
	tcase_add_test(store, test_doubt);
	tcase_add_test(store, test_open_past);
	tcase_add_test(store, test_holes);
	tcase_add_test(store, test_caps);
	tcase_add_test(store, test_stuck);
	tcase_add_test(store, test_history);
	suite_add_tcase(s, reads);
	suite_add_tcase(s, store);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
