/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: by hand, against a model, read while another process writes, with a change between any
 * two instructions of a question, and after the writer was killed.
 *
 * A body's name is made of its start, load and method id, so that each answer says by itself
 * whether its parts belong together. CLRSYM_SNAPSHOT_SECONDS makes the concurrent and the
 * stepped test longer.
 */
#include "query/snapshot.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"

#define BASE UINT64_C(0x7f1234400000)
#define CELL 2048u

static const struct snapshot_identity identity = {
	.start = 12345, .start_ns = 77, .pid = 4321, .incarnation = 2, .generation = 3
};

static struct snapshot_writer *writer;
static struct snapshot *reader;

static void setup(void)
{
	ck_assert_int_eq(snapshot_writer_new(&writer, &identity, 0), 0);
	ck_assert_int_eq(snapshot_open(&reader, snapshot_writer_fd(writer)), 0);
}

static void teardown(void)
{
	snapshot_free(reader);
	snapshot_writer_free(writer);
}

static uint32_t draw(uint64_t *rng, uint32_t n)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return (uint32_t)((*rng >> 32) * n >> 32);
}

/* -- Bodies that say what they are -------------------------------------------------------- */

static struct range make_range(uint64_t start, uint32_t size, uint64_t load)
{
	return (struct range){ .start = start,
			       .size = size,
			       .load = load,
			       .unload = RANGE_ALIVE,
			       .announced = load,
			       .method = start ^ load << 17 };
}

static uint32_t name_of(const struct range *r, char *name, size_t size)
{
	return (uint32_t)snprintf(name, size, "N.C::m%" PRIx64 "-%" PRIx64 "-%" PRIx64 "(int32)",
				  r->start, r->load, r->method);
}

static int put_range(struct snapshot_writer *w, uint32_t slot, const struct range *range)
{
	char name[128], module[64];
	struct range_body body = { .range = *range, .function = name, .module = module };

	body.function_len = name_of(range, name, sizeof(name));
	body.short_len = body.function_len - 7;
	body.module_len = (uint32_t)snprintf(module, sizeof(module), "/app/m%u.dll", slot % 5);
	return snapshot_put(w, slot, &body);
}

static int put(uint32_t slot, uint64_t start, uint32_t size, uint64_t load)
{
	struct range range = make_range(start, size, load);

	return put_range(writer, slot, &range);
}

/* The slot that answers, or -1; its name must be its own. */
static int64_t ask(uint64_t addr, uint64_t time)
{
	struct snapshot_found found;
	char name[128], want[128];
	uint32_t short_len;
	int r = snapshot_lookup(reader, addr, time, &found, NULL);

	if (r) {
		ck_assert_int_eq(r, SNAPSHOT_E_NONE);
		return -1;
	}
	ck_assert(addr - found.range.start < found.range.size);
	ck_assert_int_eq(snapshot_name(reader, &found, name, sizeof(name), &short_len, NULL, 0), 0);
	ck_assert_uint_eq(short_len, name_of(&found.range, want, sizeof(want)) - 7);
	ck_assert_str_eq(name, want);
	return found.slot;
}

/* -- By hand ------------------------------------------------------------------------------ */

START_TEST(test_identity)
{
	struct snapshot_identity got;

	snapshot_get_identity(reader, &got);
	ck_assert_uint_eq(got.start, 12345);
	ck_assert_uint_eq(got.start_ns, 77);
	ck_assert_int_eq(got.pid, 4321);
	ck_assert_uint_eq(got.incarnation, 2);
	ck_assert_uint_eq(got.generation, 3);
	ck_assert_int_eq(ask(BASE, 0), -1);
	ck_assert_int_eq(ask(0, 0), -1);
	ck_assert_int_eq(ask(UINT64_MAX, 1), -1);
}
END_TEST

START_TEST(test_edges)
{
	ck_assert_int_eq(put(3, BASE + 100, 50, 10), 0);
	ck_assert_int_eq(put(4, BASE + 150, 1, 10), 0);
	ck_assert_int_eq(put(5, BASE + CELL - 1, 2, 10), 0);
	ck_assert_int_eq(ask(BASE + 99, 0), -1);
	ck_assert_int_eq(ask(BASE + 100, 0), 3);
	ck_assert_int_eq(ask(BASE + 149, 0), 3);
	ck_assert_int_eq(ask(BASE + 150, 0), 4);
	ck_assert_int_eq(ask(BASE + 151, 0), -1);
	ck_assert_int_eq(ask(BASE + CELL - 1, 0), 5);
	ck_assert_int_eq(ask(BASE + CELL, 0), 5);
	ck_assert_int_eq(ask(BASE + CELL + 1, 0), -1);
	/* half-open in time, too */
	ck_assert_int_eq(ask(BASE + 100, 9), -1);
	ck_assert_int_eq(ask(BASE + 100, 10), 3);
	ck_assert_int_eq(snapshot_retire(writer, 3, 20), 0);
	ck_assert_int_eq(ask(BASE + 100, 19), 3);
	ck_assert_int_eq(ask(BASE + 100, 20), -1);
	ck_assert_int_eq(ask(BASE + 100, 0), -1);
	snapshot_remove(writer, 3);
	snapshot_remove(writer, 3);
	ck_assert_int_eq(ask(BASE + 100, 19), -1);
	ck_assert_int_eq(ask(BASE + 150, 0), 4);
}
END_TEST

START_TEST(test_final)
{
	struct snapshot_found found;
	bool final;

	ck_assert_int_eq(put(0, BASE, 16, 10), 0);
	snapshot_publish(writer, 100);
	ck_assert_uint_eq(snapshot_known_until(reader), 100);
	snapshot_publish(writer, 90);
	ck_assert_uint_eq(snapshot_known_until(reader), 100);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 100, &found, &final), 0);
	ck_assert(final);
	snapshot_lost(writer, 95, 97);
	snapshot_lost(writer, 92, 93);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 94, &found, &final), 0);
	ck_assert(!final);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 91, &found, &final), 0);
	ck_assert(final);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 98, &found, &final), 0);
	ck_assert(final);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 101, &found, &final), 0);
	ck_assert(!final);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 0, &found, &final), 0);
	ck_assert(!final);
	/* why it has no answer the daemon may know better */
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 5, &found, &final), SNAPSHOT_E_NONE);
	ck_assert(!final);
	ck_assert(!snapshot_is_replaced(reader) && !snapshot_has_ended(reader));
	snapshot_close(writer, true);
	ck_assert(snapshot_is_replaced(reader) && !snapshot_has_ended(reader));
	snapshot_close(writer, false);
	ck_assert(!snapshot_is_replaced(reader) && snapshot_has_ended(reader));
	/* its end makes nothing known that was not */
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 100, &found, &final), 0);
	ck_assert(final);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 101, &found, &final), 0);
	ck_assert(!final);
}
END_TEST

START_TEST(test_texts)
{
	struct range_body body = { .range = make_range(BASE, 64, 1),
				   .function = "N.\xc3\xa4::f(a)",
				   .function_len = 10,
				   .short_len = 7,
				   .module = "/a/b.dll",
				   .module_len = 8 };
	struct snapshot_found found;
	char name[16], module[9];
	uint32_t short_len;

	ck_assert_int_eq(snapshot_put(writer, 0, &body), 0);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 0, &found, NULL), 0);
	ck_assert_int_eq(snapshot_name(reader, &found, name, 16, &short_len, module, 9), 0);
	ck_assert_str_eq(name, "N.\xc3\xa4::f(a)");
	ck_assert_str_eq(module, "/a/b.dll");
	ck_assert_uint_eq(short_len, 7);
	/* cut where a character ends */
	ck_assert_int_eq(snapshot_name(reader, &found, name, 4, &short_len, module, 9),
			 SNAPSHOT_E_NO_SPACE);
	ck_assert_str_eq(name, "N.");
	ck_assert_uint_eq(short_len, 2);
	ck_assert_int_eq(snapshot_name(reader, &found, name, 5, &short_len, module, 8),
			 SNAPSHOT_E_NO_SPACE);
	ck_assert_str_eq(name, "N.\xc3\xa4");
	ck_assert_str_eq(module, "/a/b.dl");
	/* without either text */
	body.function_len = body.short_len = body.module_len = 0;
	body.range.start = BASE + 64;
	ck_assert_int_eq(snapshot_put(writer, 1, &body), 0);
	ck_assert_int_eq(snapshot_lookup(reader, BASE + 64, 0, &found, NULL), 0);
	ck_assert_int_eq(snapshot_name(reader, &found, name, 16, &short_len, module, 9), 0);
	ck_assert_str_eq(name, "");
	ck_assert_str_eq(module, "");
}
END_TEST

START_TEST(test_il)
{
	static const uint32_t il[][2] = { { 0, 0xfffffffe }, { 4, 7 }, { 9, 12 }, { 9, 13 } };
	struct range_body body = { .range = make_range(BASE, 64, 1),
				   .function = "x",
				   .function_len = 1 };
	struct snapshot_found found, old;
	uint32_t offset;

	ck_assert_int_eq(snapshot_put(writer, 0, &body), 0);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 0, &old, NULL), 0);
	ck_assert_int_eq(snapshot_il(reader, &old, 5, &offset), SNAPSHOT_E_NONE);
	/* the map came later: a correction, during which the body stays */
	body.il = il;
	body.n_il = ARRAY_SIZE(il);
	ck_assert_int_eq(snapshot_put(writer, 0, &body), 0);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 0, &found, NULL), 0);
	ck_assert_int_eq(snapshot_il(reader, &found, 0, &offset), SNAPSHOT_E_NONE);
	ck_assert_int_eq(snapshot_il(reader, &found, 4, &offset), 0);
	ck_assert_uint_eq(offset, 7);
	ck_assert_int_eq(snapshot_il(reader, &found, 8, &offset), 0);
	ck_assert_uint_eq(offset, 7);
	ck_assert_int_eq(snapshot_il(reader, &found, 63, &offset), 0);
	ck_assert_uint_eq(offset, 13);
	/* what was found before is told to be old */
	ck_assert_int_eq(snapshot_name(reader, &old, (char[8]){ 0 }, 8, NULL, NULL, 0),
			 SNAPSHOT_E_NONE);
}
END_TEST

START_TEST(test_replaced)
{
	char name[128];
	struct snapshot_found found;

	ck_assert_int_eq(put(0, BASE, 64, 1), 0);
	ck_assert_int_eq(put(1, BASE + 64, 64, 1), 0);
	ck_assert_int_eq(snapshot_lookup(reader, BASE, 0, &found, NULL), 0);
	ck_assert_int_eq(put(0, BASE + 4096, 64, 2), 0);
	ck_assert_int_eq(ask(BASE, 0), -1);
	ck_assert_int_eq(ask(BASE + 64, 0), 1);
	ck_assert_int_eq(ask(BASE + 4096, 0), 0);
	ck_assert_int_eq(snapshot_name(reader, &found, name, sizeof(name), NULL, NULL, 0),
			 SNAPSHOT_E_NONE);
}
END_TEST

START_TEST(test_has)
{
	struct range range = make_range(BASE, 64, 1);

	ck_assert(!snapshot_has(writer, 0, &range));
	ck_assert_int_eq(put_range(writer, 0, &range), 0);
	ck_assert(snapshot_has(writer, 0, &range));
	ck_assert(!snapshot_has(writer, 1, &range));
	ck_assert(!snapshot_has(writer, UINT32_MAX, &range));
	ck_assert_int_eq(snapshot_retire(writer, 0, 9), 0);
	ck_assert(snapshot_has(writer, 0, &range));
	range.load = 2;
	ck_assert(!snapshot_has(writer, 0, &range));
}
END_TEST

START_TEST(test_invalid)
{
	struct range_body body = { .range = make_range(BASE, 0, 1) };

	ck_assert_int_eq(snapshot_put(writer, 0, &body), SNAPSHOT_E_INVALID);
	body.range.size = CAP_BODY_BYTES + 1;
	ck_assert_int_eq(snapshot_put(writer, 0, &body), SNAPSHOT_E_INVALID);
	body.range.size = 16;
	body.range.start = UINT64_MAX - 8;
	ck_assert_int_eq(snapshot_put(writer, 0, &body), SNAPSHOT_E_INVALID);
	body.range.start = BASE;
	body.range.unload = 0;
	ck_assert_int_eq(snapshot_put(writer, 0, &body), SNAPSHOT_E_INVALID);
	body.range.unload = RANGE_ALIVE;
	body.short_len = 1;
	ck_assert_int_eq(snapshot_put(writer, 0, &body), SNAPSHOT_E_INVALID);
	body.short_len = 0;
	ck_assert_int_eq(snapshot_put(writer, CAP_BODIES - 1, &body), SNAPSHOT_E_FULL);
	ck_assert_int_eq(snapshot_put(writer, 0, &body), 0);
	ck_assert_int_eq(snapshot_retire(writer, 7, 3), 0);
	ck_assert_int_eq(snapshot_writer_new(&(struct snapshot_writer *){ NULL }, &identity,
					     SNAPSHOT_CLASSES),
			 -EINVAL);
}
END_TEST

/* Lines overflow into buckets and come back; in whatever order bodies come. */
START_TEST(test_crowded)
{
	uint64_t rng = 99;
	uint32_t order[512], i, j, t;

	for (i = 0; i < 512; i++)
		order[i] = i;
	for (i = 511; i; i--) {
		j = draw(&rng, i + 1);
		t = order[i], order[i] = order[j], order[j] = t;
	}
	for (i = 0; i < 512; i++)
		ck_assert_int_eq(put(order[i], BASE + order[i] * 4, 3, 1), 0);
	for (i = 0; i < 512; i++) {
		ck_assert_int_eq(ask(BASE + i * 4, 0), i);
		ck_assert_int_eq(ask(BASE + i * 4 + 2, 5), i);
		ck_assert_int_eq(ask(BASE + i * 4 + 3, 0), -1);
	}
	for (i = 0; i < 500; i++) {
		snapshot_remove(writer, order[i]);
		ck_assert_int_eq(ask(BASE + order[i] * 4, 0), -1);
	}
	for (; i < 512; i++)
		ck_assert_int_eq(ask(BASE + order[i] * 4, 0), order[i]);
	/* a change after it: fits into the line again */
	ck_assert_int_eq(put(order[0], BASE + order[0] * 4, 3, 1), 0);
	ck_assert_int_eq(ask(BASE + order[0] * 4, 0), order[0]);
	ck_assert_int_eq(ask(BASE + order[511] * 4, 0), order[511]);
}
END_TEST

START_TEST(test_retired_cap)
{
	uint32_t i, n = CAP_SNAPSHOT_RETIRED + 20;

	for (i = 0; i < n; i++) {
		ck_assert_int_eq(put(i, BASE, 64, 10 * i + 1), 0);
		ck_assert_int_eq(snapshot_retire(writer, i, 10 * i + 6), 0);
	}
	for (i = 0; i < n; i++) {
		ck_assert_int_eq(ask(BASE, 10 * i + 3), i < 20 ? -1 : (int)i);
		ck_assert_int_eq(ask(BASE, 10 * i + 8), -1);
	}
	/* one that ended before all of them comes too late */
	ck_assert_int_eq(put(n, BASE, 64, 0), 0);
	ck_assert_int_eq(snapshot_retire(writer, n, 1), 0);
	ck_assert_int_eq(ask(BASE, 10 * 20 + 3), 20);
	for (i = 0; i <= n; i++)
		snapshot_remove(writer, i);
	for (i = 0; i < n; i++)
		ck_assert_int_eq(ask(BASE, 10 * i + 3), -1);
}
END_TEST

START_TEST(test_wide)
{
	uint64_t start = BASE - 3 * CELL - 5;
	struct snapshot_stats before, after;

	snapshot_get_stats(writer, &before);
	ck_assert_int_eq(put(0, start, CAP_BODY_BYTES, 1), 0);
	snapshot_get_stats(writer, &after);
	/* what a hostile one costs */
	ck_assert_uint_lt(after.bytes - before.bytes, MIB(4));
	ck_assert_int_eq(put(1, start + CAP_BODY_BYTES, 40 * CELL, 1), 0);
	ck_assert_int_eq(put(2, start + CAP_BODY_BYTES + 40 * CELL, 40 * CELL, 1), 0);
	ck_assert_int_eq(put(3, start + CAP_BODY_BYTES + 80 * CELL, 10, 1), 0);
	ck_assert_int_eq(ask(start - 1, 0), -1);
	ck_assert_int_eq(ask(start, 0), 0);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES / 2, 7), 0);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES - 1, 0), 0);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES, 0), 1);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES + 40 * CELL - 1, 0), 1);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES + 40 * CELL, 0), 2);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES + 80 * CELL - 1, 0), 2);
	ck_assert_int_eq(ask(start + CAP_BODY_BYTES + 80 * CELL, 0), 3);
	ck_assert_int_eq(snapshot_retire(writer, 0, 50), 0);
	/* small ones where it was */
	ck_assert_int_eq(put(4, BASE + 100, 10, 60), 0);
	ck_assert_int_eq(ask(BASE + 100, 49), 0);
	ck_assert_int_eq(ask(BASE + 100, 50), -1);
	ck_assert_int_eq(ask(BASE + 100, 60), 4);
	snapshot_remove(writer, 0);
	ck_assert_int_eq(ask(BASE + 100, 49), -1);
}
END_TEST

/* Full is told before anything has changed; what is there stays, and room comes back. */
START_TEST(test_full)
{
	char *text = malloc(200000);
	struct range_body body = { .function = text, .function_len = 200000 };
	struct snapshot_stats stats;
	uint32_t i, n;
	int r = 0;

	ck_assert_ptr_nonnull(text);
	memset(text, 'x', 200000);
	ck_assert_int_eq(put(0, BASE, 64, 1), 0);
	for (n = 1;; n++) {
		text[0] = (char)('a' + n % 26);
		text[1] = (char)('a' + n / 26);
		body.range = make_range(BASE + n * 64, 64, 1);
		r = snapshot_put(writer, n, &body);
		if (r)
			break;
	}
	ck_assert_int_eq(r, SNAPSHOT_E_FULL);
	ck_assert_uint_gt(n, 200);
	snapshot_get_stats(writer, &stats);
	ck_assert_uint_eq(stats.ranges, n);
	ck_assert_int_eq(snapshot_put(writer, 0, &body), SNAPSHOT_E_FULL);
	ck_assert_int_eq(ask(BASE, 0), 0);
	/* huge pages, if there are any here, change nothing */
	for (i = 0; i < 2 && snapshot_settle(writer); i++)
		;
	for (i = 1; i < n; i++) {
		struct snapshot_found found;

		ck_assert_int_eq(snapshot_lookup(reader, BASE + i * 64, 0, &found, NULL), 0);
		ck_assert_uint_eq(found.slot, i);
	}
	snapshot_remove(writer, 5);
	ck_assert_int_eq(snapshot_put(writer, n, &body), 0);
	free(text);
}
END_TEST

/* Regions far apart: their number has a bound, too. */
START_TEST(test_scattered)
{
	uint32_t i;
	int r = 0;

	for (i = 0; i < 65536 && !r; i++)
		r = put(i, ((uint64_t)i * 0x9e3779b1 << 20 & 0x7ffffff00000) + 8, 64, 1);
	ck_assert_int_eq(r, SNAPSHOT_E_FULL);
	ck_assert_uint_gt(i, 2000);
	while (--i)
		ck_assert_int_eq(
			ask(((uint64_t)(i - 1) * 0x9e3779b1 << 20 & 0x7ffffff00000) + 71, 0),
			i - 1);
}
END_TEST

/* -- Who gets it -------------------------------------------------------------------------- */

START_TEST(test_sealed)
{
	_cleanup_close_ int again = -1;
	char path[64];
	int fd = snapshot_writer_fd(writer);

	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	ck_assert_int_lt(write(fd, "x", 1), 0);
	ck_assert_int_lt(ftruncate(fd, 0), 0);
	ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	/* root can open it for writing: the seals hold */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR);
	if (again >= 0) {
		ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0),
				 MAP_FAILED);
		ck_assert_int_lt(write(again, "x", 1), 0);
		ck_assert_int_lt(ftruncate(again, 0), 0);
		ck_assert_int_lt(
			fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
	}
}
END_TEST

static void refuse(int fd)
{
	struct snapshot *s = NULL;

	ck_assert_int_eq(snapshot_open(&s, fd), SNAPSHOT_E_INVALID);
	ck_assert_ptr_null(s);
}

START_TEST(test_refused)
{
	_cleanup_close_ int fd = memfd_create("x", MFD_ALLOW_SEALING), file = -1;
	int pipes[2];
	char *bytes = malloc(MIB(8));

	/* the right content, but it can shrink */
	ck_assert_ptr_nonnull(bytes);
	ck_assert_int_eq(pread(snapshot_writer_fd(writer), bytes, MIB(8), 0), MIB(8));
	ck_assert_int_eq(write(fd, bytes, MIB(8)), MIB(8));
	refuse(fd);
	/* sealed, but its parts lie behind the end */
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	ck_assert_int_eq(pwrite(fd, &(uint64_t){ MIB(9) }, 8, 56), 8);
	refuse(fd);
	ck_assert_int_eq(pwrite(fd, "not one", 8, 0), 8);
	refuse(fd);
	fd = fd_close(fd);
	fd = memfd_create("x", MFD_ALLOW_SEALING);
	ck_assert_int_eq(write(fd, bytes, 100), 100);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refuse(fd);
	ck_assert_int_eq(pipe(pipes), 0);
	refuse(pipes[0]);
	file = open("/proc/self/exe", O_RDONLY);
	refuse(file);
	refuse(-1);
	close(pipes[0]);
	close(pipes[1]);
	free(bytes);
}
END_TEST

/* -- Against a model ---------------------------------------------------------------------- */

/* As many slots as a line keeps retired ones: none is pushed out. */
#define N_MODEL CAP_SNAPSHOT_RETIRED

static struct range model[N_MODEL];

static int64_t model_ask(uint64_t addr, uint64_t time)
{
	int64_t i;

	for (i = 0; i < N_MODEL; i++) {
		const struct range *r = &model[i];

		if (addr - r->start < r->size &&
		    (time ? r->load <= time && time < r->unload : r->unload == RANGE_ALIVE))
			return i;
	}
	return -1;
}

static struct range model_draw(uint64_t *rng, uint64_t now)
{
	static const uint32_t most[] = { 30, 500, 6000, 200000, 3000000 };
	uint32_t size = 1 + draw(rng, most[draw(rng, ARRAY_SIZE(most))]);

	return make_range(BASE - CELL + draw(rng, draw(rng, 2) ? 16384 : 2000000), size, now);
}

static bool model_free(const struct range *r, uint32_t slot)
{
	uint32_t i;

	for (i = 0; i < N_MODEL; i++)
		if (i != slot && model[i].size && model[i].unload == RANGE_ALIVE &&
		    model[i].start < r->start + r->size &&
		    r->start < model[i].start + model[i].size)
			return false;
	return true;
}

static void model_step(uint64_t *rng, uint64_t now)
{
	uint32_t slot = draw(rng, N_MODEL);
	struct range *own = &model[slot], range;

	if (draw(rng, 3) == 0 && own->size) {
		*own = (struct range){ 0 };
		snapshot_remove(writer, slot);
		return;
	}
	if (own->size && own->unload == RANGE_ALIVE) {
		if (draw(rng, 4) == 0) {
			/* a correction */
			own->announced = now;
			ck_assert_int_eq(put_range(writer, slot, own), 0);
			return;
		}
		own->unload = now;
		ck_assert_int_eq(snapshot_retire(writer, slot, now), 0);
		return;
	}
	range = model_draw(rng, now);
	if (!model_free(&range, slot))
		return;
	ck_assert_int_eq(put_range(writer, slot, &range), 0);
	*own = range;
}

START_TEST(test_model)
{
	uint64_t rng = 88172645463325252u + (unsigned int)_i, now, addr, time;
	uint32_t i;
	int n_hits = 0;

	memset(model, 0, sizeof(model));
	for (now = 1; now < 4000; now++) {
		const struct range *r = &model[draw(&rng, N_MODEL)];

		model_step(&rng, now);
		for (i = 0; i < 8; i++) {
			addr = draw(&rng, 2) ? BASE - CELL + draw(&rng, 18000)
					     : r->start - 1 + draw(&rng, r->size + 2);
			time = draw(&rng, 3) ? now - draw(&rng, (uint32_t)MIN(now, 400)) : 0;
			ck_assert_int_eq(ask(addr, time), model_ask(addr, time));
			n_hits += model_ask(addr, time) >= 0;
		}
	}
	ck_assert_int_gt(n_hits, 3000);
}
END_TEST

/* -- While another process writes --------------------------------------------------------- */

#define N_CHURN     300u
#define N_POSITIONS 96u
/* Slots that change hands all the time, in their own positions: 1 and on. */
#define N_HOT 3u

enum { CLEAN, CHANGING, UNPUBLISHED };

/* What the writing process has done, as the test sees it. */
struct journal {
	struct range range;
	uint32_t position; /* of a body that is alive */
	uint32_t state;
};

struct churn {
	struct journal slots[N_CHURN];
	uint32_t owner[N_POSITIONS]; /* slot + 1 */
	uint64_t now, rng;
};

/* Small ones side by side, and some wide ones in regions of their own. */
static struct range churn_range(struct churn *c, uint32_t position)
{
	if (position % 12 == 11)
		return make_range(BASE + MIB(4) + position * MIB(1), 40000 + draw(&c->rng, 900000),
				  c->now);
	return make_range(BASE + position * 300 + draw(&c->rng, 4) * 8, 16 + draw(&c->rng, 250),
			  c->now);
}

static void churn_apply(struct snapshot_writer *w, struct churn *c, uint32_t slot)
{
	struct journal *j = &c->slots[slot];
	uint32_t position =
		slot < N_HOT ? 1 + slot : N_HOT + 1 + draw(&c->rng, N_POSITIONS - N_HOT - 1);

	if (slot < N_HOT && draw(&c->rng, 8)) {
		/* another body in its place, without more ado */
		j->range = churn_range(c, position);
		j->position = position;
		c->owner[position] = slot + 1;
		if (put_range(w, slot, &j->range))
			abort();
		return;
	}
	if (j->range.size && j->range.unload == RANGE_ALIVE) {
		if (snapshot_retire(w, slot, c->now))
			abort();
		j->range.unload = c->now;
		c->owner[j->position] = 0;
		return;
	}
	if (c->owner[position]) {
		snapshot_remove(w, slot);
		j->range = (struct range){ 0 };
		return;
	}
	j->range = churn_range(c, position);
	j->position = position;
	c->owner[position] = slot + 1;
	if (put_range(w, slot, &j->range))
		abort();
}

static void churn_run(struct snapshot_writer *w, struct churn *c, uint64_t until_ns)
{
	uint32_t i, slot;

	do {
		for (i = 0; i < 16; i++) {
			c->now++;
			slot = draw(&c->rng, draw(&c->rng, 2) ? N_HOT : N_CHURN);
			__atomic_store_n(&c->slots[slot].state, CHANGING, __ATOMIC_SEQ_CST);
			churn_apply(w, c, slot);
			__atomic_store_n(&c->slots[slot].state, UNPUBLISHED, __ATOMIC_SEQ_CST);
		}
		snapshot_publish(w, c->now);
		for (i = 0; i < N_CHURN; i++)
			__atomic_store_n(&c->slots[i].state, CLEAN, __ATOMIC_SEQ_CST);
	} while (clock_now_ns() < until_ns);
}

static struct churn *churn_new(uint64_t seed)
{
	struct churn *c =
		mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(c, MAP_FAILED);
	c->rng = 88172645463325252u + seed;
	return c;
}

static pid_t churn_start(struct churn *c, uint64_t until_ns)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		churn_run(writer, c, until_ns);
		_exit(0);
	}
	return pid;
}

/* A final answer that was given, to be given again for ever. */
struct given {
	uint64_t addr, time, start, load;
};

struct asking {
	uint64_t rng, until_ns;
	uint64_t hits, finals, named, bad;
	struct given given[64];
	pthread_t thread;
};

static uint64_t churn_addr(uint64_t *rng)
{
	if (draw(rng, 4) == 0)
		return BASE + MIB(4) + (draw(rng, N_POSITIONS / 12) * 12 + 11) * MIB(1) +
		       draw(rng, 900000);
	if (draw(rng, 2))
		return BASE + 300 + draw(rng, N_HOT * 300);
	return BASE + draw(rng, N_POSITIONS * 300);
}

static void ask_name(struct asking *a, const struct snapshot_found *found)
{
	char name[128], want[128];
	int r = snapshot_name(reader, found, name, sizeof(name), NULL, NULL, 0);

	name_of(&found->range, want, sizeof(want));
	a->named += !r;
	a->bad += r ? r != SNAPSHOT_E_NONE : strcmp(name, want) != 0;
}

/* The same or none: nothing else may ever be said of that time again. */
static void ask_again(struct asking *a)
{
	const struct given *g = &a->given[draw(&a->rng, ARRAY_SIZE(a->given))];
	struct snapshot_found found;

	if (g->addr && !snapshot_lookup(reader, g->addr, g->time, &found, NULL))
		a->bad += found.range.start != g->start || found.range.load != g->load;
}

static void ask_once(struct asking *a)
{
	uint64_t known = snapshot_known_until(reader), addr = churn_addr(&a->rng), time;
	struct snapshot_found found;
	bool final;

	time = draw(&a->rng, 4) ? known + 20 - draw(&a->rng, (uint32_t)MIN(known + 20, 400)) : 0;
	if (snapshot_lookup(reader, addr, time, &found, &final))
		return;
	a->hits++;
	a->bad += addr - found.range.start >= found.range.size;
	a->bad += found.range.method != (found.range.start ^ found.range.load << 17);
	a->bad += time && (found.range.load > time || found.range.unload <= time);
	a->bad += !time && found.range.unload != RANGE_ALIVE;
	ask_name(a, &found);
	if (final) {
		a->finals++;
		a->given[draw(&a->rng, ARRAY_SIZE(a->given))] =
			(struct given){ addr, time, found.range.start, found.range.load };
	}
}

static void *ask_thread(void *data)
{
	struct asking *a = data;
	uint32_t i;

	while (clock_now_ns() < a->until_ns)
		for (i = 0; i < 256; i++) {
			ask_once(a);
			ask_again(a);
		}
	return NULL;
}

START_TEST(test_concurrent)
{
	const char *seconds = getenv("CLRSYM_SNAPSHOT_SECONDS");
	uint64_t until_ns =
		clock_now_ns() + (seconds ? strtoull(seconds, NULL, 10) * SEC_NS(1) : MS_NS(300));
	struct churn *c = churn_new(1);
	struct asking asking[3] = { 0 };
	pid_t pid = churn_start(c, until_ns);
	uint32_t i;
	int status;

	for (i = 0; i < ARRAY_SIZE(asking); i++) {
		asking[i].rng = 77 + i;
		asking[i].until_ns = until_ns;
		ck_assert_int_eq(pthread_create(&asking[i].thread, NULL, ask_thread, &asking[i]),
				 0);
	}
	for (i = 0; i < ARRAY_SIZE(asking); i++) {
		pthread_join(asking[i].thread, NULL);
		ck_assert_uint_eq(asking[i].bad, 0);
		ck_assert_uint_gt(asking[i].hits, 100);
		ck_assert_uint_gt(asking[i].finals, 50);
		ck_assert_uint_gt(asking[i].named, 50);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	munmap(c, sizeof(*c));
}
END_TEST

/* -- A change between any two instructions ------------------------------------------------ */

/* What the stepped process and the stepping one share. */
struct stepped {
	uint32_t inside; /* a question */
	uint32_t hits, named, bad;
};

#define STEP_ADDR (BASE + 1000)

static void stepped_ask(struct stepped *s)
{
	struct snapshot_found found;
	char name[128], want[128];
	int r, m = SNAPSHOT_E_NONE;

	__atomic_store_n(&s->inside, 1, __ATOMIC_SEQ_CST);
	r = snapshot_lookup(reader, STEP_ADDR, 0, &found, NULL);
	if (!r)
		m = snapshot_name(reader, &found, name, sizeof(name), NULL, NULL, 0);
	__atomic_store_n(&s->inside, 0, __ATOMIC_SEQ_CST);
	if (r)
		return;
	s->hits++;
	s->bad += STEP_ADDR - found.range.start >= found.range.size ||
		  found.range.unload != RANGE_ALIVE ||
		  found.range.method != (found.range.start ^ found.range.load << 17);
	if (m)
		return;
	s->named++;
	name_of(&found.range, want, sizeof(want));
	s->bad += strcmp(name, want) != 0;
}

static pid_t stepped_start(struct stepped *s)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(77);
	for (;;) {
		raise(SIGSTOP);
		stepped_ask(s);
	}
}

/* Another body at the address, by each of the ways in which that can come about. */
static void stepped_change(uint32_t n)
{
	static uint32_t slot;
	uint64_t start = STEP_ADDR - n % 3 * 8;
	uint32_t i;

	switch (n % 4) {
	case 0: break;
	case 1:
		ck_assert_int_eq(snapshot_retire(writer, slot, 1000 + n), 0);
		slot = (slot + 1) % 4;
		break;
	case 2: snapshot_remove(writer, slot); break;
	default:
		/* what is used next is what was given back last */
		for (i = 10; i < 30; i++)
			ck_assert_int_eq(put(i, BASE + 20 * i, 10, n + 1), 0);
		for (i = 10; i < 30; i++)
			snapshot_remove(writer, i);
	}
	ck_assert_int_eq(put(slot, start, 64, n + 1), 0);
}

/* So many instructions into a question. False: it was over before. */
static bool stepped_go(pid_t pid, const struct stepped *s, uint32_t n)
{
	uint32_t i = 0;
	bool was_inside = false;
	int status;

	while (i < n) {
		ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert(WIFSTOPPED(status));
		if (__atomic_load_n(&s->inside, __ATOMIC_SEQ_CST))
			was_inside = true, i++;
		else if (was_inside)
			return false;
	}
	return true;
}

START_TEST(test_stepped)
{
	struct stepped *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	/* the lookup comes first and is what matters; every instruction of both only if asked for
	 */
	bool all = getenv("CLRSYM_SNAPSHOT_SECONDS");
	uint32_t n = 0, round = 0;
	pid_t pid;
	int status;

	ck_assert_ptr_ne(s, MAP_FAILED);
	ck_assert_int_eq(put(0, STEP_ADDR, 64, 1), 0);
	pid = stepped_start(s);
	for (;; n += all ? 1 : n < 250 ? 5 : n / 2) {
		bool more;

		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
			printf("skip stepped: no ptrace here\n");
			break;
		}
		ck_assert(WIFSTOPPED(status));
		more = stepped_go(pid, s, n);
		stepped_change(round++);
		if (!more)
			break;
		ck_assert_int_eq(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
	}
	if (!WIFEXITED(status)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		ck_assert_uint_gt(s->hits, 30);
		ck_assert_uint_gt(s->named, 0);
	}
	ck_assert_uint_eq(s->bad, 0);
	munmap(s, sizeof(*s));
}
END_TEST

/* -- A writer that is killed -------------------------------------------------------------- */

/* What was published and not touched since is there. */
static void check_complete(const struct churn *c)
{
	struct snapshot_found found;
	uint32_t i;

	for (i = 0; i < N_CHURN; i++) {
		const struct journal *j = &c->slots[i];
		bool alive = j->range.unload == RANGE_ALIVE;

		if (j->state != CLEAN || !j->range.size)
			continue;
		/* retired in the moment it came: never an answer */
		if (!alive && j->range.unload == j->range.load)
			continue;
		ck_assert_int_eq(snapshot_lookup(reader, j->range.start + j->range.size - 1,
						 alive ? 0 : j->range.unload - 1, &found, NULL),
				 0);
		ck_assert_uint_eq(found.slot, i);
		ck_assert_uint_eq(found.range.load, j->range.load);
	}
}

START_TEST(test_killed)
{
	uint64_t rng = 4711;
	uint32_t i, j;

	for (i = 0; i < 50; i++) {
		struct churn *c = churn_new(i);
		struct asking a = { .rng = 5 + i };
		pid_t pid;
		int status;

		setup();
		pid = churn_start(c, clock_now_ns() + SEC_NS(20));
		usleep(500 + draw(&rng, 3000));
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		check_complete(c);
		for (j = 0; j < 300; j++) {
			ask_once(&a);
			ask_again(&a);
		}
		ck_assert_uint_eq(a.bad, 0);
		munmap(c, sizeof(*c));
		teardown();
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("snapshot");
	TCase *tc = tcase_create("by hand");
	SRunner *sr;
	int failed;

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, test_identity);
	tcase_add_test(tc, test_edges);
	tcase_add_test(tc, test_final);
	tcase_add_test(tc, test_texts);
	tcase_add_test(tc, test_il);
	tcase_add_test(tc, test_replaced);
	tcase_add_test(tc, test_has);
	tcase_add_test(tc, test_invalid);
	tcase_add_test(tc, test_crowded);
	tcase_add_test(tc, test_retired_cap);
	tcase_add_test(tc, test_wide);
	tcase_add_test(tc, test_full);
	tcase_add_test(tc, test_scattered);
	tcase_add_test(tc, test_sealed);
	tcase_add_test(tc, test_refused);
	tcase_add_loop_test(tc, test_model, 0, 3);
	tcase_add_test(tc, test_concurrent);
	tcase_add_test(tc, test_stepped);
	suite_add_tcase(s, tc);
	tc = tcase_create("killed");
	tcase_add_test(tc, test_killed);
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
