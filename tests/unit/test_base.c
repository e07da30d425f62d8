/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop above all: what callbacks may do to sources, timers and works, their own and
 * others', while a batch is under way. Then buffers, numbers, hashes and the limit on log lines.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/number.h"
#include "base/reader.h"

/* -- The loop ---------------------------------------------------------------------------- */

/* What happened, a letter a callback. */
static char trace[256];
static struct loop *loop;

static void note(char c)
{
	size_t n = strlen(trace);

	ck_assert_uint_lt(n + 1, sizeof(trace));
	trace[n] = c;
	trace[n + 1] = '\0';
}

static void loop_setup(void)
{
	trace[0] = '\0';
	ck_assert_int_eq(loop_new(&loop), 0);
}

static void loop_teardown(void)
{
	loop_free(loop);
}

/* Runs what is due: until the loop has found nothing to do for a while. */
static void stop_now(struct loop_timer *timer)
{
	loop_stop(timer->loop ? timer->loop : loop, 0);
}

static void run_ms(unsigned int ms)
{
	struct loop_timer timer = { 0 };

	ck_assert_int_eq(loop_timer_set(loop, &timer, clock_now_ns() + MS_NS(ms), stop_now), 0);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_timer_del(&timer);
}

/* A pipe whose reading end is watched; it has a byte to read from the start. */
struct source {
	struct loop_fd io;
	int fds[2];
	char letter;
	struct source *victim; /* removed by the callback */
	bool frees;            /* the victim, too */
};

static void source_deinit(struct source *s)
{
	loop_fd_del(&s->io);
	s->fds[0] = fd_close(s->fds[0]);
	s->fds[1] = fd_close(s->fds[1]);
}

static void source_ready(struct loop_fd *io, uint32_t events)
{
	struct source *s = container_of(io, struct source, io);
	struct source *victim = s->victim;
	char c;

	ck_assert_uint_eq(events & EPOLLIN, EPOLLIN);
	ck_assert_int_eq(read(io->fd, &c, 1), 1);
	note(s->letter);
	s->victim = NULL;
	if (!victim)
		return;
	source_deinit(victim);
	if (s->frees)
		free(victim);
}

static struct source *source_new(char letter)
{
	struct source *s = calloc(1, sizeof(*s));

	ck_assert_ptr_nonnull(s);
	s->letter = letter;
	ck_assert_int_eq(pipe2(s->fds, O_CLOEXEC | O_NONBLOCK), 0);
	ck_assert_int_eq(write(s->fds[1], "x", 1), 1);
	ck_assert_int_eq(loop_fd_add(loop, &s->io, s->fds[0], EPOLLIN, source_ready), 0);
	return s;
}

static void source_free(struct source *s)
{
	source_deinit(s);
	free(s);
}

/* Both are ready in one batch, and the first removes (and frees) the other. */
START_TEST(test_fd_removed_by_another)
{
	struct source *a = source_new('a'), *b = source_new('b');

	a->victim = b;
	b->victim = a;
	a->frees = b->frees = true;
	run_ms(10);
	ck_assert_uint_eq(strlen(trace), 1);
	source_free(trace[0] == 'a' ? a : b);
}
END_TEST

/* The victim's memory and fd number are used again at once: the old event is not the new one's. */
static struct source *reborn;

static void reborn_ready(struct loop_fd *io, uint32_t events)
{
	char c;

	ck_assert_uint_eq(events, EPOLLIN);
	ck_assert_int_eq(read(io->fd, &c, 1), 1);
	note('r');
}

static void replace_other(struct loop_fd *io, uint32_t events UNUSED)
{
	struct source *s = container_of(io, struct source, io);
	struct source *victim = s->victim;
	char c;

	ck_assert_int_eq(read(io->fd, &c, 1), 1);
	note('a');
	if (!victim)
		return;
	s->victim = victim->victim = NULL;
	source_deinit(victim);
	ck_assert_int_eq(pipe2(victim->fds, O_CLOEXEC | O_NONBLOCK), 0);
	ck_assert_int_eq(loop_fd_add(loop, &victim->io, victim->fds[0], EPOLLIN, reborn_ready), 0);
	reborn = victim;
}

START_TEST(test_fd_replaced_by_another)
{
	struct source *a = source_new('a'), *b = source_new('b');

	a->victim = b;
	b->victim = a;
	a->io.fn = b->io.fn = replace_other;
	run_ms(10);
	ck_assert_str_eq(trace, "a"); /* nothing to read in the new pipe */
	ck_assert_int_eq(write(reborn->fds[1], "x", 1), 1);
	run_ms(10);
	ck_assert_str_eq(trace, "ar");
	source_free(a);
	source_free(b);
}
END_TEST

static void ready_and_gone(struct loop_fd *io, uint32_t events UNUSED)
{
	note('g');
	source_free(container_of(io, struct source, io));
}

START_TEST(test_fd_frees_itself)
{
	struct source *a = source_new('a'), *b = source_new('b');

	a->io.fn = ready_and_gone;
	run_ms(10);
	ck_assert_uint_eq(strlen(trace), 2);
	ck_assert_ptr_nonnull(strchr(trace, 'g'));
	source_free(b);
}
END_TEST

START_TEST(test_fd_events)
{
	struct source *a = source_new('a');

	ck_assert_int_eq(loop_fd_set(&a->io, 0), 0);
	run_ms(10);
	ck_assert_str_eq(trace, "");
	ck_assert_int_eq(loop_fd_set(&a->io, EPOLLIN), 0);
	run_ms(10);
	ck_assert_str_eq(trace, "a");
	loop_fd_del(&a->io);
	loop_fd_del(&a->io); /* no effect */
	ck_assert_int_eq(loop_fd_set(&a->io, EPOLLIN), -EINVAL);
	ck_assert_int_eq(loop_fd_add(loop, &a->io, -1, EPOLLIN, source_ready), -EBADF);
	ck_assert_ptr_null(a->io.loop);
	source_free(a);
}
END_TEST

/* -- Timers ------------------------------------------------------------------------------ */

struct ticker {
	struct loop_timer timer;
	char letter;
	unsigned int n; /* fires so often */
	struct ticker *victim;
};

static void tick(struct loop_timer *timer)
{
	struct ticker *t = container_of(timer, struct ticker, timer);

	ck_assert_ptr_null(timer->loop);
	ck_assert_uint_le(timer->deadline_ns, clock_now_ns());
	note(t->letter);
	if (t->victim)
		loop_timer_del(&t->victim->timer);
	if (--t->n)
		ck_assert_int_eq(loop_timer_set(loop, timer, clock_now_ns() + MS_NS(1), tick), 0);
}

/* More than the heap's first size; set in a scrambled order, some moved, some deleted. */
START_TEST(test_timer_order)
{
	static const char expected[] = "bcdefghijklmnopqrstuvwxyz";
	struct ticker t[26] = { 0 };
	uint64_t base = clock_now_ns() + MS_NS(5);
	size_t i;

	for (i = 0; i < 26; i++) {
		size_t k = i * 7 % 26;

		t[k].letter = (char)('a' + k);
		t[k].n = 1;
		/* every third begins at a wrong place */
		ck_assert_int_eq(
			loop_timer_set(loop, &t[k].timer, k % 3 ? base + k : base + 1000 - k, tick),
			0);
	}
	for (i = 0; i < 26; i += 3)
		ck_assert_int_eq(loop_timer_set(loop, &t[i].timer, base + i, tick), 0);
	loop_timer_del(&t[0].timer);
	loop_timer_del(&t[0].timer); /* no effect */
	run_ms(20);
	ck_assert_str_eq(trace, expected);
}
END_TEST

START_TEST(test_timer_rearms_itself)
{
	struct ticker t = { .letter = 't', .n = 4 };

	ck_assert_int_eq(loop_timer_set(loop, &t.timer, 0, tick), 0);
	run_ms(50);
	ck_assert_str_eq(trace, "tttt");
}
END_TEST

/* Two are due; the first to fire deletes the other. */
START_TEST(test_timer_deletes_another)
{
	struct ticker a = { .letter = 'a', .n = 1 }, b = { .letter = 'b', .n = 1 };

	a.victim = &b;
	b.victim = &a;
	ck_assert_int_eq(loop_timer_set(loop, &b.timer, 2, tick), 0);
	ck_assert_int_eq(loop_timer_set(loop, &a.timer, 1, tick), 0);
	run_ms(5);
	ck_assert_str_eq(trace, "a");
}
END_TEST

/* Deletes itself and sets itself in its own callback. */
static void tick_odd(struct loop_timer *timer)
{
	note('o');
	loop_timer_del(timer);
	ck_assert_int_eq(loop_timer_set(loop, timer, 0, stop_now), 0);
	loop_timer_del(timer);
}

static void tick_frees(struct loop_timer *timer)
{
	note('f');
	free(container_of(timer, struct ticker, timer));
}

START_TEST(test_timer_own_callback)
{
	struct ticker odd = { 0 }, *freed = calloc(1, sizeof(*freed));

	ck_assert_ptr_nonnull(freed);
	ck_assert_int_eq(loop_timer_set(loop, &odd.timer, 1, tick_odd), 0);
	ck_assert_int_eq(loop_timer_set(loop, &freed->timer, 2, tick_frees), 0);
	run_ms(10);
	ck_assert_str_eq(trace, "of");
}
END_TEST

static void tick_past(struct loop_timer *timer)
{
	note('p');
	if (strlen(trace) < 100)
		ck_assert_int_eq(loop_timer_set(loop, timer, 0, tick_past), 0);
}

/* One that sets itself to the past again and again keeps nobody else from their turn. */
START_TEST(test_timer_in_the_past)
{
	struct source *a = source_new('a');
	struct ticker t = { 0 };

	ck_assert_int_eq(loop_timer_set(loop, &t.timer, 0, tick_past), 0);
	run_ms(10);
	ck_assert_ptr_nonnull(strchr(trace, 'a'));
	ck_assert_int_le(strchr(trace, 'a') - trace, 2);
	loop_timer_del(&t.timer);
	source_free(a);
}
END_TEST

/* -- Works ------------------------------------------------------------------------------- */

struct job {
	struct loop_work work;
	char letter;
	unsigned int n; /* slices */
	bool frees;
	struct source *feeds; /* gets a byte to read in each slice */
};

static bool job_slice(struct loop_work *work, uint64_t deadline_ns)
{
	struct job *j = container_of(work, struct job, work);
	bool more = --j->n;

	ck_assert_ptr_null(work->loop);
	ck_assert_uint_ge(deadline_ns + SLICE_NS, clock_now_ns());
	note(j->letter);
	if (j->feeds)
		ck_assert_int_eq(write(j->feeds->fds[1], "x", 1), 1);
	if (!more && j->frees)
		free(j);
	return more;
}

START_TEST(test_work_round_robin)
{
	struct job a = { .letter = 'a', .n = 3 }, b = { .letter = 'b', .n = 1 },
		   c = { .letter = 'c', .n = 2 };

	loop_work_add(loop, &a.work, job_slice);
	loop_work_add(loop, &b.work, job_slice);
	loop_work_add(loop, &c.work, job_slice);
	loop_work_add(loop, &a.work, job_slice); /* is queued already */
	run_ms(10);
	ck_assert_str_eq(trace, "abcaca");
}
END_TEST

/* Head, middle and tail of the queue are taken out of it. */
START_TEST(test_work_deleted)
{
	struct job j[5];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(j); i++) {
		j[i] = (struct job){ .letter = (char)('a' + i), .n = 1 };
		loop_work_add(loop, &j[i].work, job_slice);
	}
	for (i = 0; i < ARRAY_SIZE(j); i += 2)
		loop_work_del(&j[i].work);
	loop_work_del(&j[0].work); /* no effect */
	run_ms(10);
	ck_assert_str_eq(trace, "bd");
	for (i = 0; i < ARRAY_SIZE(j); i++)
		loop_work_del(&j[i].work);
	j[0].n = 1;
	loop_work_add(loop, &j[0].work, job_slice);
	run_ms(10);
	ck_assert_str_eq(trace, "bda");
}
END_TEST

START_TEST(test_work_frees_its_owner)
{
	struct job *a = calloc(1, sizeof(*a)), b = { .letter = 'b', .n = 2 };

	ck_assert_ptr_nonnull(a);
	*a = (struct job){ .letter = 'a', .n = 2, .frees = true };
	loop_work_add(loop, &a->work, job_slice);
	loop_work_add(loop, &b.work, job_slice);
	run_ms(10);
	ck_assert_str_eq(trace, "abab");
}
END_TEST

static bool job_again(struct loop_work *work, uint64_t deadline_ns UNUSED)
{
	struct job *j = container_of(work, struct job, work);

	note(j->letter);
	if (--j->n)
		loop_work_add(loop, work, job_again);
	return false;
}

START_TEST(test_work_adds_itself)
{
	struct job a = { .letter = 'a', .n = 3 };

	loop_work_add(loop, &a.work, job_again);
	run_ms(10);
	ck_assert_str_eq(trace, "aaa");
	ck_assert_ptr_null(a.work.loop);
}
END_TEST

/* What becomes readable during a slice is read before the next one. */
START_TEST(test_sockets_before_work)
{
	struct source *s = source_new('s');
	struct job a = { .letter = 'a', .n = 2, .feeds = s }, b = { .letter = 'b', .n = 1 };

	loop_work_add(loop, &a.work, job_slice);
	loop_work_add(loop, &b.work, job_slice);
	run_ms(10);
	ck_assert_str_eq(trace, "sasbas");
	source_free(s);
}
END_TEST

static void always_ready(struct loop_fd *io UNUSED, uint32_t events UNUSED)
{
	if (strlen(trace) < 200)
		note('s');
}

/* A socket that is always ready does not keep work from its slice for ever. */
START_TEST(test_work_is_not_starved)
{
	struct source *s = source_new('s');
	struct job a = { .letter = 'a', .n = 1 };

	s->io.fn = always_ready;
	loop_work_add(loop, &a.work, job_slice);
	run_ms(10);
	ck_assert_ptr_nonnull(strchr(trace, 'a'));
	ck_assert_int_ge(strchr(trace, 'a') - trace, 10);
	source_free(s);
}
END_TEST

/* -- The end of it ----------------------------------------------------------------------- */

static void stop_with_7(struct loop_fd *io UNUSED, uint32_t events UNUSED)
{
	note('7');
	loop_stop(loop, 7);
	loop_stop(loop, 8); /* the first word counts */
}

/* Nothing is called after the stop: not the rest of the batch, no timer, no work. */
START_TEST(test_stop)
{
	struct source *a = source_new('a'), *b = source_new('b');
	struct ticker t = { .letter = 't', .n = 1 };
	struct job j = { .letter = 'j', .n = 1 };

	a->io.fn = b->io.fn = stop_with_7;
	ck_assert_int_eq(loop_timer_set(loop, &t.timer, 0, tick), 0);
	loop_work_add(loop, &j.work, job_slice);
	ck_assert_int_eq(loop_run(loop), 7);
	ck_assert_str_eq(trace, "7");
	loop_stop(loop, -ENOMEM);
	ck_assert_int_eq(loop_run(loop), -ENOMEM); /* stopped before it ran */
	ck_assert_str_eq(trace, "7");
	source_free(a);
	source_free(b);
	run_ms(10);
	ck_assert_str_eq(trace, "7tj");
}
END_TEST

START_TEST(test_loop_nothing)
{
	loop_free(NULL);
	run_ms(1);
	ck_assert_str_eq(trace, "");
}
END_TEST

/* -- Buffers ----------------------------------------------------------------------------- */

START_TEST(test_buf)
{
	static const char expected[] =
		"one 2 \x03\x05\x04\x09\x08\x07\x06\x08\x07\x06\x05\x04\x03\x02\x01";
	_cleanup_buf_ struct buf b;

	buf_init(&b, 1000);
	ck_assert_int_eq(buf_append(&b, NULL, 0), 0);
	ck_assert_int_eq(buf_puts(&b, "one"), 0);
	ck_assert_int_eq(buf_putc(&b, ' '), 0);
	ck_assert_int_eq(buf_printf(&b, "%d ", 2), 0);
	buf_put_u8(&b, 3);
	buf_put_u16(&b, 0x0405);
	buf_put_u32(&b, 0x06070809);
	buf_put_u64(&b, 0x0102030405060708);
	ck_assert_int_eq(b.error, 0);
	ck_assert_uint_eq(b.len, sizeof(expected) - 1);
	ck_assert_str_eq(buf_cstr(&b), expected);
	ck_assert_uint_eq(b.len, sizeof(expected) - 1); /* the NUL is not counted */
	buf_consume(&b, 4);
	ck_assert_str_eq(buf_cstr(&b), expected + 4);
	buf_consume(&b, 1000);
	ck_assert_uint_eq(b.len, 0);
	ck_assert_str_eq(buf_cstr(&b), "");
}
END_TEST

/* At the cap; past it nothing changes, and the failure stays until it is cleared. */
START_TEST(test_buf_cap)
{
	_cleanup_buf_ struct buf b;

	buf_init(&b, 10);
	ck_assert_int_eq(buf_append(&b, "0123456789", 10), 0);
	ck_assert_uint_le(b.size, 10);
	ck_assert_int_eq(buf_putc(&b, 'x'), -ENOSPC);
	ck_assert_uint_eq(b.len, 10);
	ck_assert_int_eq(memcmp(b.data, "0123456789", 10), 0);
	buf_consume(&b, 5);
	ck_assert_int_eq(buf_putc(&b, 'x'), -ENOSPC);
	ck_assert_int_eq(b.error, -ENOSPC);
	ck_assert_ptr_null(buf_cstr(&b));
	buf_clear(&b);
	ck_assert_int_eq(b.error, 0);
	ck_assert_int_eq(buf_reserve(&b, 11), -ENOSPC);
	buf_clear(&b);
	ck_assert_int_eq(buf_reserve(&b, SIZE_MAX), -ENOSPC);
	buf_clear(&b);
	ck_assert_int_eq(buf_puts(&b, "abc"), 0);
	ck_assert_int_eq(buf_append(&b, "x", SIZE_MAX - 1), -ENOSPC); /* the sum wraps */
	buf_clear(&b);
	/* a text that is formatted needs room for its NUL, too */
	ck_assert_int_eq(buf_printf(&b, "%s", "012345678"), 0);
	buf_clear(&b);
	ck_assert_int_eq(buf_printf(&b, "%s", "0123456789"), -ENOSPC);
	ck_assert_uint_eq(b.len, 0);
	buf_deinit(&b);
	ck_assert_int_eq(buf_puts(&b, "again"), 0);
	ck_assert_str_eq(buf_cstr(&b), "again");
}
END_TEST

START_TEST(test_buf_no_cap_at_all)
{
	_cleanup_buf_ struct buf b;

	buf_init(&b, 0);
	ck_assert_int_eq(buf_reserve(&b, 0), 0);
	ck_assert_int_eq(buf_append(&b, "", 0), 0);
	ck_assert_ptr_null(buf_cstr(&b));
}
END_TEST

/* A MB byte by byte: the content, and not a reallocation each time. */
START_TEST(test_buf_grows)
{
	_cleanup_buf_ struct buf b;
	unsigned int n_moves = 0;
	size_t i, size = 0;

	buf_init(&b, MIB(1));
	for (i = 0; i < MIB(1); i++) {
		ck_assert_int_eq(buf_put_u8(&b, (uint8_t)(i * 31)), 0);
		n_moves += b.size != size;
		size = b.size;
	}
	ck_assert_uint_lt(n_moves, 40);
	for (i = 0; i < MIB(1); i++)
		if (b.data[i] != (uint8_t)(i * 31))
			ck_abort_msg("byte %zu is wrong", i);
	ck_assert_int_eq(buf_put_u8(&b, 0), -ENOSPC);
}
END_TEST

/* -- The reader --------------------------------------------------------------------------- */

static const struct {
	const char *bytes;
	size_t n;
	unsigned int max;
	bool bad;
	uint64_t v;
	size_t used;
} varints[] = {
	{ "\x00", 1, 5, false, 0, 1 },
	{ "\x7f", 1, 5, false, 127, 1 },
	{ "\x80\x01", 2, 5, false, 128, 2 },
	{ "\xff\xff\xff\xff\x0f", 5, 5, false, UINT32_MAX, 5 },
	{ "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10, 10, false, UINT64_MAX, 10 },
	{ "\x80\x80\x00", 3, 5, false, 0, 3 },
	{ "", 0, 5, true, 0, 0 },
	{ "\x80", 1, 5, true, 0, 1 },
	{ "\xff\xff\xff\xff\xff\x0f", 6, 5, true, 0, 6 },
	{ "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 10, true, 0, 11 },
};

START_TEST(test_varint)
{
	struct reader r;

	reader_init(&r, varints[_i].bytes, varints[_i].n);
	ck_assert_uint_eq(reader_varint(&r, varints[_i].max), varints[_i].v);
	ck_assert_int_eq(r.bad, varints[_i].bad);
	ck_assert_uint_eq(varints[_i].n - reader_left(&r), varints[_i].used);
}
END_TEST

START_TEST(test_reader)
{
	static const uint8_t bytes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
	struct reader r;

	reader_init(&r, bytes, sizeof(bytes));
	ck_assert_uint_eq(reader_u8(&r), 1);
	ck_assert_uint_eq(reader_u16(&r), 0x0302);
	ck_assert_uint_eq(reader_u32(&r), 0x07060504);
	ck_assert_uint_eq(reader_u64(&r), 0x0f0e0d0c0b0a0908);
	ck_assert_uint_eq(reader_left(&r), 1);
	ck_assert(!r.bad);
	/* past the end: zero, bad, and nothing is left */
	ck_assert_uint_eq(reader_u16(&r), 0);
	ck_assert(r.bad);
	ck_assert_uint_eq(reader_left(&r), 0);
	ck_assert_uint_eq(reader_u8(&r), 0);
	ck_assert_ptr_null(reader_bytes(&r, SIZE_MAX));
	ck_assert(r.bad);
}
END_TEST

/* -- Numbers ------------------------------------------------------------------------------ */

static const struct {
	const char *text;
	uint64_t max;
	bool good;
	uint64_t v;
} numbers[] = {
	{ "0", UINT64_MAX, true, 0 },
	{ "007", UINT64_MAX, true, 7 },
	{ "18446744073709551615", UINT64_MAX, true, UINT64_MAX },
	{ "18446744073709551616", UINT64_MAX, false, 0 },
	{ "99999999999999999999999", UINT64_MAX, false, 0 },
	{ "10", 10, true, 10 },
	{ "11", 10, false, 0 },
	{ "", UINT64_MAX, false, 0 },
	{ "-1", UINT64_MAX, false, 0 },
	{ "+1", UINT64_MAX, false, 0 },
	{ " 1", UINT64_MAX, false, 0 },
	{ "1 ", UINT64_MAX, false, 0 },
	{ "0x10", UINT64_MAX, false, 0 },
	{ "1k", UINT64_MAX, false, 0 },
	{ "1.5", UINT64_MAX, false, 0 },
};

START_TEST(test_u64)
{
	uint64_t v = 42;

	ck_assert_int_eq(parse_u64(numbers[_i].text, numbers[_i].max, &v), numbers[_i].good);
	ck_assert_uint_eq(v, numbers[_i].good ? numbers[_i].v : 42);
}
END_TEST

static const struct {
	const char *text;
	bool good;
	uint64_t v;
} sizes[] = {
	{ "1", true, 1 },
	{ "1k", true, KIB(1) },
	{ "1K", true, KIB(1) },
	{ "64M", true, MIB(64) },
	{ "2G", true, GIB(2) },
	{ "17179869183G", true, GIB(17179869183) },
	{ "17179869184G", false, 0 },
	{ "18446744073709551615", true, UINT64_MAX },
	{ "18446744073709551615k", false, 0 },
	{ "0", false, 0 },
	{ "0M", false, 0 },
	{ "", false, 0 },
	{ "M", false, 0 },
	{ "1m", false, 0 },
	{ "1kk", false, 0 },
	{ "1kB", false, 0 },
	{ "-1k", false, 0 },
};

START_TEST(test_size)
{
	size_t v = 42;

	ck_assert_int_eq(parse_size(sizes[_i].text, &v), sizes[_i].good);
	ck_assert_uint_eq(v, sizes[_i].good ? sizes[_i].v : 42);
}
END_TEST

START_TEST(test_pid)
{
	pid_t pid = 42;

	ck_assert(!parse_pid("0", &pid));
	ck_assert(!parse_pid("-1", &pid));
	ck_assert(!parse_pid("2147483648", &pid));
	ck_assert(!parse_pid("1x", &pid));
	ck_assert_int_eq(pid, 42);
	ck_assert(parse_pid("2147483647", &pid));
	ck_assert_int_eq(pid, INT32_MAX);
}
END_TEST

/* -- The limit on log lines ---------------------------------------------------------------- */

/* At these times (s) a line comes; does it pass, and how many does it say were kept back? */
static const struct {
	uint64_t at_s;
	bool pass;
	uint32_t dropped;
} lines[] = {
	{ 1000, true, 0 },  { 1000, true, 0 },  { 1001, true, 0 },  { 1009, true, 0 },
	{ 1009, true, 0 },  { 1009, false, 0 }, { 1009, false, 0 }, { 1010, true, 2 },
	{ 1010, true, 0 },  { 1011, true, 0 },  { 1011, true, 0 },  { 1011, true, 0 },
	{ 1011, false, 0 }, { 1500, true, 1 },  { 1500, true, 0 },
};

START_TEST(test_log_limit)
{
	struct log_limit limit = { 0 };
	uint32_t dropped;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(lines); i++) {
		dropped = 0;
		ck_assert_msg(log_limit_pass(&limit, SEC_NS(lines[i].at_s), &dropped) ==
				      lines[i].pass,
			      "line %zu", i);
		ck_assert_msg(dropped == lines[i].dropped, "line %zu: %u dropped", i, dropped);
	}
}
END_TEST

/* -- Hashes -------------------------------------------------------------------------------- */

/* Each length has its own path through the bytes: each byte of it must count, and the seed. */
START_TEST(test_hash_bytes)
{
	uint8_t bytes[64];
	size_t n, i;

	for (n = 0; n <= sizeof(bytes); n++) {
		uint64_t h;

		memset(bytes, 0x5a, sizeof(bytes));
		h = hash_bytes(1, bytes, n);
		ck_assert_uint_eq(hash_bytes(1, bytes, n), h);
		ck_assert_uint_ne(hash_bytes(3, bytes, n), h);
		for (i = 0; i < sizeof(bytes); i++) {
			bytes[i] ^= 1;
			ck_assert_msg((hash_bytes(1, bytes, n) != h) == (i < n), "byte %zu of %zu",
				      i, n);
			bytes[i] ^= 1;
		}
	}
}
END_TEST

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* What comes in sequence or in steps of a page falls all over the table. */
START_TEST(test_hash_spread)
{
	static const uint64_t steps[] = { 1, 16, 4096, (uint64_t)1 << 32 };
	static uint64_t h[4096];
	unsigned int slots[256] = { 0 }, worst = 0;
	uint64_t seed = hash_seed();
	size_t i;

	ck_assert_uint_ne(seed, 0);
	ck_assert_uint_eq(hash_seed(), seed);
	for (i = 0; i < ARRAY_SIZE(h); i++) {
		h[i] = hash_u64(seed, 0x7f0000000000 + i * steps[_i]);
		worst = MAX(worst, ++slots[h[i] % ARRAY_SIZE(slots)]);
	}
	ck_assert_uint_lt(worst, 160); /* 16 on average; one chain would have all 4096 */
	qsort(h, ARRAY_SIZE(h), sizeof(h[0]), compare);
	for (i = 1; i < ARRAY_SIZE(h); i++)
		ck_assert_uint_ne(h[i], h[i - 1]);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("base");
	TCase *tc = tcase_create("loop");
	SRunner *sr;
	int failed;

	tcase_add_checked_fixture(tc, loop_setup, loop_teardown);
	tcase_add_test(tc, test_fd_removed_by_another);
	tcase_add_test(tc, test_fd_replaced_by_another);
	tcase_add_test(tc, test_fd_frees_itself);
	tcase_add_test(tc, test_fd_events);
	tcase_add_test(tc, test_timer_order);
	tcase_add_test(tc, test_timer_rearms_itself);
	tcase_add_test(tc, test_timer_deletes_another);
	tcase_add_test(tc, test_timer_own_callback);
	tcase_add_test(tc, test_timer_in_the_past);
	tcase_add_test(tc, test_work_round_robin);
	tcase_add_test(tc, test_work_deleted);
	tcase_add_test(tc, test_work_frees_its_owner);
	tcase_add_test(tc, test_work_adds_itself);
	tcase_add_test(tc, test_sockets_before_work);
	tcase_add_test(tc, test_work_is_not_starved);
	tcase_add_test(tc, test_stop);
	tcase_add_test(tc, test_loop_nothing);
	suite_add_tcase(s, tc);
	tc = tcase_create("values");
	tcase_add_test(tc, test_buf);
	tcase_add_test(tc, test_buf_cap);
	tcase_add_test(tc, test_buf_no_cap_at_all);
	tcase_add_test(tc, test_buf_grows);
	tcase_add_loop_test(tc, test_varint, 0, ARRAY_SIZE(varints));
	tcase_add_test(tc, test_reader);
	tcase_add_loop_test(tc, test_u64, 0, ARRAY_SIZE(numbers));
	tcase_add_loop_test(tc, test_size, 0, ARRAY_SIZE(sizes));
	tcase_add_test(tc, test_pid);
	tcase_add_test(tc, test_log_limit);
	tcase_add_test(tc, test_hash_bytes);
	tcase_add_loop_test(tc, test_hash_spread, 0, 4);
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
