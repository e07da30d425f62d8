/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequence numbers of capture threads.
 *
 * The table lives as long as the session, which may be months, while threads come and go.
 * A sequence point lists every thread that the runtime still keeps for the session: one that
 * is absent has ended and been flushed. Its number is kept for one more period, for events
 * that overtook the point, then forgotten. That bounds the table by the target's live threads;
 * CAP_THREADS bounds it against a stream that lies.
 *
 * A number that runs backwards means that the kernel gave the thread id to a new thread,
 * which counts from 1 again. For one period the runtime may keep both threads, so that a
 * sequence point lists the id twice; `before` keeps the old thread's number apart.
 */
#include "nettrace/threads.h"

#include <errno.h>
#include <stdlib.h>

#include "base/caps.h"
#include "base/hash.h"
#include "base/util.h"

#define THREADS_MIN_SLOTS 64u

void threads_init(struct threads *threads)
{
	*threads = (struct threads){ .seed = hash_seed(), .period = 1 };
}

void threads_deinit(struct threads *threads)
{
	free(threads->slots);
	threads->slots = NULL;
}

static size_t threads_home(const struct threads *threads, uint64_t id)
{
	return hash_u64(threads->seed, id) & (threads->n_slots - 1);
}

/* The slot that holds the id, or the free one where it belongs. There is always a free one. */
static struct thread *threads_slot(const struct threads *threads, uint64_t id)
{
	size_t i = threads_home(threads, id);

	while (threads->slots[i].period && threads->slots[i].id != id)
		i = (i + 1) & (threads->n_slots - 1);
	return &threads->slots[i];
}

static int threads_grow(struct threads *threads)
{
	struct threads grown = *threads;
	size_t i;

	grown.n_slots = MAX(threads->n_slots * 2, (size_t)THREADS_MIN_SLOTS);
	grown.slots = calloc(grown.n_slots, sizeof(*grown.slots));
	if (!grown.slots)
		return -ENOMEM;
	for (i = 0; i < threads->n_slots; i++) {
		if (threads->slots[i].period)
			*threads_slot(&grown, threads->slots[i].id) = threads->slots[i];
	}
	free(threads->slots);
	grown.last = NULL;
	*threads = grown;
	return 0;
}

int threads_get(struct threads *threads, uint64_t id, struct thread **threadp)
{
	struct thread *thread = NULL;
	int r;

	if (threads->n_slots)
		thread = threads_slot(threads, id);
	if (!thread || !thread->period) {
		if (threads->n_used >= CAP_THREADS) {
			*threadp = NULL;
			return 0;
		}
		if (threads->n_used >= threads->n_slots / 2) {
			r = threads_grow(threads);
			if (r < 0)
				return r;
			thread = threads_slot(threads, id);
		}
		*thread = (struct thread){ .id = id };
		threads->n_used++;
	}
	thread->period = threads->period;
	threads->last = thread;
	*threadp = thread;
	return 0;
}

/* Frees slot i and closes the hole, so that no probe stops short of what it looks for. */
static void threads_remove(struct threads *threads, size_t i)
{
	size_t mask = threads->n_slots - 1;
	size_t j = i;

	for (;;) {
		size_t home;

		j = (j + 1) & mask;
		if (!threads->slots[j].period)
			break;
		home = threads_home(threads, threads->slots[j].id);
		if (((j - home) & mask) < ((j - i) & mask))
			continue; /* its home lies behind the hole */
		threads->slots[i] = threads->slots[j];
		i = j;
	}
	threads->slots[i].period = 0;
	threads->n_used--;
}

void threads_expire(struct threads *threads)
{
	size_t i = 0;

	while (i < threads->n_slots) {
		const struct thread *thread = &threads->slots[i];

		/* a removal may move another thread into this slot: look again */
		if (thread->period && thread->period != threads->period)
			threads_remove(threads, i);
		else
			i++;
	}
	threads->last = NULL;
	threads->period++;
	if (!threads->period)
		threads->period = 1;
}

uint32_t thread_see_event(struct thread *thread, uint32_t sequence, uint64_t timestamp)
{
	uint32_t lost = sequence - thread->sequence - 1;

	if ((int32_t)lost < 0) {
		thread->before = thread->sequence;
		lost = sequence ? sequence - 1 : 0;
	}
	thread->sequence = sequence;
	thread->timestamp = timestamp;
	return lost;
}

uint32_t thread_see_point(struct thread *thread, uint32_t sequence)
{
	uint32_t lost = sequence - thread->sequence;

	if ((int32_t)lost <= 0 || (thread->before && sequence == thread->before))
		return 0;
	thread->sequence = sequence;
	return lost;
}
