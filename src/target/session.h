/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * session: one EventPipe session of a target, from its request to the end of its stream.
 *
 * Drain first, think later: whatever the socket holds is read at once into a backlog of
 * chunks; decoding is deferred work of the loop. Past the backlog's cap (this session's or the
 * pool's) decoding comes before the next read. A stop goes out on a second connection while the
 * first is drained, for StopTracing returns only when its stream has been read to the end.
 */

#include <stdbool.h>
#include <stdint.h>

#include "codemap/codemap.h"
#include "diagipc/diagipc.h"
#include "proc/proc.h"
#include "target/call.h"
#include "target/feed.h"

/* What all targets of one loop share. */
struct pool {
	struct loop *loop;
	size_t backlog;          /* bytes read and not yet decoded, all targets */
	unsigned int n_rundowns; /* under way */
	struct target *waiting;  /* for their turn to do a rundown, first come first served */
};

struct session;

struct session_options {
	struct diagipc_version version;
	struct diagipc_session request; /* its providers are borrowed until opened */
	struct feed_options feed;
	bool live; /* measure delays */
};

enum session_end {
	SESSION_COMPLETE = 1, /* end tag read */
	SESSION_CUT,          /* the stream just stopped: the target died, or was exec'ed over */
	SESSION_REFUSED,      /* never opened: see session_end_text() */
	SESSION_CORRUPT,      /* the stream cannot be followed any more */
	SESSION_TIMEOUT,      /* not over by the deadline of its stop */
	SESSION_FAILED,       /* our own failure (memory) */
};

struct session_callbacks {
	void (*opened)(struct session *session, void *data);
	/* The last word; the session may be freed from here. */
	void (*ended)(struct session *session, enum session_end end, void *data);
	/* Something was decoded. */
	void (*progress)(struct session *session, void *data);
};

int session_new(struct session **outp, struct pool *pool, const struct proc *proc,
		const struct proc_socket_options *socket_opts, struct codemap *map,
		const struct session_options *opts, const struct session_callbacks *callbacks,
		void *data);
/*
 * Closes what is left. A session that was never stopped is ended by the runtime when its next
 * write fails.
 */
void session_free(struct session *session);

/* Ends the session in good order; ended() comes when the stream is read out, or at timeout. */
void session_stop(struct session *session, uint64_t timeout_ns);

bool session_is_open(const struct session *session);
struct feed *session_feed(struct session *session);
uint64_t session_bytes(const struct session *session);
/* Everything that arrived before this time has been decoded. */
uint64_t session_read_until(const struct session *session);
/* Hands the session to another owner's functions (same data). */
void session_set_callbacks(struct session *session, const struct session_callbacks *callbacks);
const char *session_end_text(const struct session *session);

DEFINE_CLEANUP(struct session *, session_free)
