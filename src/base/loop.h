/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The event loop: one thread, one epoll.
 *
 * Callbacks do bounded work. Sockets come first: deferred work (decoding, formatting) runs only
 * when no fd is ready, one slice at a time, and the fds are looked at again in between.
 * Sources, timers and works are embedded in their owner's struct; each may be removed at any
 * time, from its own callback too.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/util.h"

struct loop;

struct loop_fd {
	struct loop *loop; /* NULL when not watched */
	int fd;
	void (*fn)(struct loop_fd *source, uint32_t events);
};

struct loop_timer {
	struct loop *loop; /* NULL when not armed */
	size_t index;      /* in the loop's heap */
	uint64_t deadline_ns;
	void (*fn)(struct loop_timer *timer);
};

struct loop_work {
	struct loop *loop; /* NULL when not scheduled */
	struct loop_work *next, *prev;
	/* One slice, until about deadline_ns. True: there is more (and the owner still lives). */
	bool (*fn)(struct loop_work *work, uint64_t deadline_ns);
};

int loop_new(struct loop **outp);
void loop_free(struct loop *loop);

/* Runs until loop_stop() (not at all when it came before); returns its code, or -errno. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop, int code);

/* Watches fd (not owned) for EPOLL* events. Returns 0 or -errno. */
int loop_fd_add(struct loop *loop, struct loop_fd *source, int fd, uint32_t events,
		void (*fn)(struct loop_fd *source, uint32_t events));
int loop_fd_set(struct loop_fd *source, uint32_t events);
void loop_fd_del(struct loop_fd *source);

/* Arms (or re-arms) a timer at an absolute CLOCK_MONOTONIC time. Returns 0 or -ENOMEM. */
int loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t deadline_ns,
		   void (*fn)(struct loop_timer *timer));
void loop_timer_del(struct loop_timer *timer);

/* Schedules a work at the end of the queue; no effect when it is scheduled already. */
void loop_work_add(struct loop *loop, struct loop_work *work,
		   bool (*fn)(struct loop_work *work, uint64_t deadline_ns));
void loop_work_del(struct loop_work *work);

DEFINE_CLEANUP(struct loop *, loop_free)
