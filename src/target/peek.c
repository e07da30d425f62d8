/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One reading thread: see peek.h.
 *
 * It has one job at a time, handed over and back under a lock. While it is away the job and
 * its buffer are its own, also after the caller has given up; the last of the two frees everything.
 *
 * A late answer is forgiven a few times, for a machine that swaps is slow but not hostile. After
 * that nothing more is asked.
 */
#include "target/peek.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/caps.h"

#define PEEK_WAIT_NS MS_NS(100)
#define PEEK_STRIKES 3u
#define PEEK_STACK   (256u << 10)
/* Threads left behind, of all processes together. */
#define PEEK_LEFT_MAX 16u

static atomic_uint peek_left;

struct peek {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t asked, answered;
	int fd;
	bool busy; /* a job is asked for and not answered */
	bool quit;
	bool left; /* behind */
	uint64_t addr;
	size_t size, n;
	uint8_t *buffer;
	size_t buffer_size;
	unsigned int strikes; /* the caller's */
};

static void peek_destroy(struct peek *p)
{
	pthread_cond_destroy(&p->asked);
	pthread_cond_destroy(&p->answered);
	pthread_mutex_destroy(&p->lock);
	fd_close(p->fd);
	free(p->buffer);
	free(p);
}

static size_t peek_fill(struct peek *p)
{
	size_t n = 0;

	while (n < p->size) {
		ssize_t got = pread(p->fd, p->buffer + n, p->size - n, (off_t)(p->addr + n));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	return n;
}

static void *peek_run(void *data)
{
	struct peek *p = data;
	size_t n;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!p->busy && !p->quit)
			pthread_cond_wait(&p->asked, &p->lock);
		if (p->quit)
			break;
		pthread_mutex_unlock(&p->lock);
		n = peek_fill(p);
		pthread_mutex_lock(&p->lock);
		p->n = n;
		p->busy = false;
		pthread_cond_signal(&p->answered);
	}
	pthread_mutex_unlock(&p->lock);
	if (p->left)
		peek_left--;
	peek_destroy(p);
	return NULL;
}

/* The loop's signals are none of its business. */
static int peek_start(struct peek *p)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int r;

	r = pthread_attr_init(&attr);
	if (r)
		return -r;
	pthread_attr_setstacksize(&attr, MAX((size_t)PEEK_STACK, (size_t)PTHREAD_STACK_MIN));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&p->thread, &attr, peek_run, p);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

int peek_new(struct peek **outp, int mem_fd)
{
	struct peek *p = calloc(1, sizeof(*p));
	pthread_condattr_t monotonic;
	int r;

	if (!p || peek_left >= PEEK_LEFT_MAX) {
		fd_close(mem_fd);
		free(p);
		return p ? PEEK_E_STUCK : -ENOMEM;
	}
	p->fd = mem_fd;
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&p->asked, NULL);
	pthread_cond_init(&p->answered, &monotonic);
	pthread_condattr_destroy(&monotonic);
	r = peek_start(p);
	if (r < 0) {
		peek_destroy(p);
		return r;
	}
	*outp = p;
	return 0;
}

void peek_free(struct peek *p)
{
	pthread_t thread;
	bool away;

	if (!p)
		return;
	thread = p->thread;
	pthread_mutex_lock(&p->lock);
	p->quit = true;
	away = p->left = p->busy;
	peek_left += away;
	pthread_cond_signal(&p->asked);
	pthread_mutex_unlock(&p->lock);
	/* the thread frees what is left, whenever it gets there */
	if (away)
		pthread_detach(thread);
	else
		pthread_join(thread, NULL);
}

static bool peek_wait(struct peek *p)
{
	struct timespec until;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += PEEK_WAIT_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	while (p->busy && !r)
		r = pthread_cond_timedwait(&p->answered, &p->lock, &until);
	return !p->busy;
}

static int peek_ask(struct peek *p, uint64_t addr, size_t size)
{
	uint8_t *buffer;

	/* still away since the last time, or not worth another wait */
	if (p->busy || p->strikes >= PEEK_STRIKES)
		return PEEK_E_STUCK;
	if (size > p->buffer_size) {
		buffer = realloc(p->buffer, size);
		if (!buffer)
			return -ENOMEM;
		p->buffer = buffer;
		p->buffer_size = size;
	}
	p->addr = addr;
	p->size = size;
	p->busy = true;
	pthread_cond_signal(&p->asked);
	if (peek_wait(p))
		return 0;
	p->strikes++;
	return PEEK_E_STUCK;
}

int peek_read(struct peek *p, uint64_t addr, size_t size, const uint8_t **bytesp, size_t *np)
{
	int r;

	pthread_mutex_lock(&p->lock);
	r = peek_ask(p, addr, size);
	pthread_mutex_unlock(&p->lock);
	if (r)
		return r;
	*bytesp = p->buffer;
	*np = p->n;
	return 0;
}
