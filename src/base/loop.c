/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop.
 *
 * A round: wait for fds (not at all while work is queued), dispatch what is ready, fire
 * due timers, and only when no fd was ready run one slice of the first queued work, which then goes
 * to the end of the queue if there is more of it. So a target that sends is drained before anything
 * is thought about, and no work starves another.
 *
 * Events of one epoll_wait() may name a source that an earlier callback of the same batch has
 * removed: loop_fd_del() blanks it in the batch.
 */
#include "base/loop.h"

#include <errno.h>

#include "base/caps.h"
#include "base/clock.h"

#define LOOP_BATCH 64
/* A busy stream may keep fds ready for ever: after so many rounds work gets a slice anyway. */
#define LOOP_ROUNDS_BEFORE_WORK 64

struct loop {
	int epoll_fd;
	bool stopped;
	int code;
	struct loop_timer **timers; /* binary heap by deadline */
	size_t n_timers, timers_size;
	struct loop_work *work_head, *work_tail;
	struct epoll_event batch[LOOP_BATCH];
	int n_batch;
};

int loop_new(struct loop **outp)
{
	_cleanup_(loop_freep) struct loop *loop = calloc(1, sizeof(*loop));

	if (!loop)
		return -ENOMEM;
	loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll_fd < 0)
		return -errno;
	*outp = TAKE_PTR(loop);
	return 0;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	fd_close(loop->epoll_fd);
	free(loop->timers);
	free(loop);
}

/* -- fds ------------------------------------------------------------------------------ */

int loop_fd_add(struct loop *loop, struct loop_fd *source, int fd, uint32_t events,
		void (*fn)(struct loop_fd *source, uint32_t events))
{
	struct epoll_event ev = { .events = events, .data.ptr = source };

	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return -errno;
	*source = (struct loop_fd){ .loop = loop, .fd = fd, .fn = fn };
	return 0;
}

int loop_fd_set(struct loop_fd *source, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = source };

	if (!source->loop)
		return -EINVAL;
	if (epoll_ctl(source->loop->epoll_fd, EPOLL_CTL_MOD, source->fd, &ev) < 0)
		return -errno;
	return 0;
}

void loop_fd_del(struct loop_fd *source)
{
	struct loop *loop = source->loop;
	int i;

	if (!loop)
		return;
	epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
	for (i = 0; i < loop->n_batch; i++)
		if (loop->batch[i].data.ptr == source)
			loop->batch[i].data.ptr = NULL;
	source->loop = NULL;
}

/* -- timers --------------------------------------------------------------------------- */

static void timer_place(struct loop *loop, size_t i, struct loop_timer *timer)
{
	loop->timers[i] = timer;
	timer->index = i;
}

static void timer_sift(struct loop *loop, size_t i, struct loop_timer *timer)
{
	for (; i > 0; i = (i - 1) / 2) {
		struct loop_timer *up = loop->timers[(i - 1) / 2];

		if (up->deadline_ns <= timer->deadline_ns)
			break;
		timer_place(loop, i, up);
	}
	for (;;) {
		size_t child = 2 * i + 1;

		if (child + 1 < loop->n_timers &&
		    loop->timers[child + 1]->deadline_ns < loop->timers[child]->deadline_ns)
			child++;
		if (child >= loop->n_timers ||
		    loop->timers[child]->deadline_ns >= timer->deadline_ns)
			break;
		timer_place(loop, i, loop->timers[child]);
		i = child;
	}
	timer_place(loop, i, timer);
}

int loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t deadline_ns,
		   void (*fn)(struct loop_timer *timer))
{
	loop_timer_del(timer);
	if (loop->n_timers == loop->timers_size) {
		size_t size = MAX(loop->timers_size * 2, (size_t)16);
		struct loop_timer **timers = realloc(loop->timers, size * sizeof(*timers));

		if (!timers)
			return -ENOMEM;
		loop->timers = timers;
		loop->timers_size = size;
	}
	*timer = (struct loop_timer){ .loop = loop, .deadline_ns = deadline_ns, .fn = fn };
	timer_sift(loop, loop->n_timers++, timer);
	return 0;
}

void loop_timer_del(struct loop_timer *timer)
{
	struct loop *loop = timer->loop;
	struct loop_timer *last;

	if (!loop)
		return;
	timer->loop = NULL;
	last = loop->timers[--loop->n_timers];
	if (last != timer)
		timer_sift(loop, timer->index, last);
}

static void loop_fire_timers(struct loop *loop)
{
	uint64_t now = clock_now_ns();
	size_t n = loop->n_timers; /* one that sets itself to the past must not keep us here */

	while (n-- && !loop->stopped && loop->n_timers && loop->timers[0]->deadline_ns <= now) {
		struct loop_timer *timer = loop->timers[0];

		loop_timer_del(timer);
		timer->fn(timer);
	}
}

/* -- deferred work -------------------------------------------------------------------- */

void loop_work_add(struct loop *loop, struct loop_work *work,
		   bool (*fn)(struct loop_work *work, uint64_t deadline_ns))
{
	if (work->loop)
		return;
	*work = (struct loop_work){ .loop = loop, .prev = loop->work_tail, .fn = fn };
	if (loop->work_tail)
		loop->work_tail->next = work;
	else
		loop->work_head = work;
	loop->work_tail = work;
}

void loop_work_del(struct loop_work *work)
{
	struct loop *loop = work->loop;

	if (!loop)
		return;
	if (work->prev)
		work->prev->next = work->next;
	else
		loop->work_head = work->next;
	if (work->next)
		work->next->prev = work->prev;
	else
		loop->work_tail = work->prev;
	work->loop = NULL;
}

static void loop_run_work(struct loop *loop)
{
	struct loop_work *work = loop->work_head;
	bool (*fn)(struct loop_work *, uint64_t) = work->fn;

	/*
	 * Off the queue before the call, so that the callback may add it again or free
	 * its owner; only a callback that says "more" leaves the work to us.
	 */
	loop_work_del(work);
	if (fn(work, clock_now_ns() + SLICE_NS))
		loop_work_add(loop, work, fn);
}

/* -- the loop ------------------------------------------------------------------------- */

static int loop_timeout_ms(const struct loop *loop)
{
	uint64_t now, left;

	if (loop->work_head)
		return 0;
	if (!loop->n_timers)
		return -1;
	now = clock_now_ns();
	if (loop->timers[0]->deadline_ns <= now)
		return 0;
	/* rounded up: a timer never fires early, and the loop does not spin before it */
	left = (loop->timers[0]->deadline_ns - now + 999999) / 1000000;
	return (int)MIN(left, (uint64_t)60000);
}

int loop_run(struct loop *loop)
{
	unsigned int rounds = 0;
	int i, n;

	while (!loop->stopped) {
		n = epoll_wait(loop->epoll_fd, loop->batch, LOOP_BATCH, loop_timeout_ms(loop));
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		loop->n_batch = n;
		for (i = 0; i < n && !loop->stopped; i++) {
			struct loop_fd *source = loop->batch[i].data.ptr;

			if (source)
				source->fn(source, loop->batch[i].events);
		}
		loop->n_batch = 0;
		loop_fire_timers(loop);
		rounds = n ? rounds + 1 : 0;
		if (loop->work_head && !loop->stopped &&
		    (!n || rounds >= LOOP_ROUNDS_BEFORE_WORK)) {
			loop_run_work(loop);
			rounds = 0;
		}
	}
	loop->stopped = false;
	return loop->code;
}

void loop_stop(struct loop *loop, int code)
{
	if (loop->stopped)
		return;
	loop->stopped = true;
	loop->code = code;
}
