/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A fake daemon: a real snapshot, real parsing and spelling of Resolve, and every answer
 * replaceable by raw bytes.
 */

#include <stdatomic.h>

#include "include/clrsym.h"
#include "query/snapshot.h"
#include "tests/lib/server.h"

#define FAKE_PID   4711
#define FAKE_START 123456u

/* Bodies of the snapshot: number i is at FAKE_CODE + i * FAKE_STEP, called Ns.Type::M<i>(int32). */
#define FAKE_CODE UINT64_C(0x7f0000000000)
#define FAKE_STEP 0x100u
#define FAKE_SIZE 0x80u
/* A body that the daemon alone knows. */
#define FAKE_FAR      UINT64_C(0x7f8000000000)
#define FAKE_FAR_SIZE 0x40u
/* Addresses without code: the low byte is the number of a reason in fake_reasons. */
#define FAKE_NOWHERE UINT64_C(0xffff800000000000)
extern const char *const fake_reasons[];

#define FAKE_T0 UINT64_C(1000000000)

enum fake_method {
	FAKE_ATTACH,
	FAKE_SNAPSHOT,
	FAKE_RESOLVE,
	FAKE_MONITOR,
	FAKE_METHODS,
};

struct fake {
	char dir[32], path[64];
	struct server *server;
	struct snapshot_writer *_Atomic writer;
	/* all; replaced ones stay, as one may be on its way to a client */
	struct snapshot_writer *writers[64];
	size_t n_writers;
	_Atomic bool attached;
	_Atomic uint32_t calls[FAKE_METHODS], addresses;
	/* of Resolve */
	uint64_t known_until;
	uint32_t wait_ms; /* as the last one had it */
	/* instead of the answer; NULL: the real one, "": none. */
	const char *_Atomic raw[FAKE_METHODS], *_Atomic error[FAKE_METHODS];
	int snapshot_fd; /* -1: the writer's; -2: none */
};

void fake_start(struct fake *f);
void fake_stop(struct fake *f);
/* kill -9, and a new one that knows nothing but has the same address. */
void fake_kill(struct fake *f);
void fake_restart(struct fake *f);

/* A snapshot with n bodies, all loaded at FAKE_T0; takes the place of the last one. */
void fake_snapshot(struct fake *f, uint32_t generation, uint32_t n);
void fake_put(struct snapshot_writer *w, uint32_t i, uint64_t load, const char *name);

/* A handle to it. */
struct clrsym *fake_open(const struct fake *f);
struct clrsym_process *fake_process(struct clrsym *c);
