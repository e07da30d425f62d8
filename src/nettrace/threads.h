/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Lost events, by sequence numbers.
 *
 * The runtime numbers the events of each capturing thread 1, 2, 3 ... (mod 2^32) and goes on
 * counting while it drops events. So a jump between two events of a thread, or a sequence
 * point ahead of the thread's last event, is the number of events lost.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct thread {
	uint64_t id;
	uint64_t timestamp; /* of the last event seen, 0 if none */
	uint32_t sequence;  /* last number seen or accounted for */
	uint32_t before;    /* the last one before the thread's id was recycled, 0 if never */
	uint32_t period;    /* of the last sign of life; 0: the slot is free */
};

struct threads {
	struct thread *slots; /* open addressing, linear probing */
	size_t n_slots;       /* 0 or a power of two */
	size_t n_used;
	struct thread *last; /* events of one thread come in runs */
	uint64_t seed;
	uint32_t period; /* counts sequence points, never 0 */
};

void threads_init(struct threads *threads);
void threads_deinit(struct threads *threads);

/*
 * The thread of this id, made if there is none; NULL if the table is at CAP_THREADS.
 * Valid until the next call. Returns 0 or -ENOMEM.
 */
int threads_get(struct threads *threads, uint64_t id, struct thread **threadp);

/* Forgets the threads that have given no sign of life since the last call. */
void threads_expire(struct threads *threads);

/* An event of this number arrived. Returns how many were lost before it. */
uint32_t thread_see_event(struct thread *thread, uint32_t sequence, uint64_t timestamp);

/* The thread had reached this number at a sequence point. Returns how many were lost. */
uint32_t thread_see_point(struct thread *thread, uint32_t sequence);
