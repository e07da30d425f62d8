/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * client: one connection to the query socket, from the asking side. Calls block, for a bounded
 * time. Not thread-safe. What the server sends is checked like anything else.
 */

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/util.h"
#include "query/symbols.h"

struct query_client;

/*
 * Connects. Returns 0 or -errno: ENOENT and ECONNREFUSED mean that there is no daemon, EACCES that
 * it is not for us, ENAMETOOLONG that no socket can have this path. timeout_ms (at least 1): of
 * every call.
 */
int query_client_open(struct query_client **outp, const char *path, uint32_t timeout_ms);
void query_client_free(struct query_client *c);

/*
 * One call. parameters (may be NULL) is taken over, whatever happens. *replyp: the reply's
 * parameters, an object, owned (on QUERY_E_REMOTE those of the error). fdp (may be NULL): an fd
 * that came with it, owned, or -1. Returns 0, QUERY_E_REMOTE (see query_client_error()), or -errno:
 * ETIMEDOUT, ECONNRESET (the daemon has gone), EPROTO (it does not speak the protocol), EBUSY (a
 * stream is not at its end), EMSGSIZE (no request may be so long), ENOMEM. On all but 0 and REMOTE
 * *replyp is NULL. After a -errno the connection is of no use any more: every call returns it
 * again.
 */
int query_client_call(struct query_client *c, const char *method, json_t *parameters,
		      json_t **replyp, int *fdp);

/* A call with `more`: replies come from query_client_next() until *continuesp is false. */
int query_client_call_more(struct query_client *c, const char *method, json_t *parameters);
/*
 * timeout_ms: -1 waits for ever. Returns as query_client_call(); -EAGAIN when the time is over: the
 * stream goes on (*continuesp is true). -EINVAL: there is no stream.
 */
int query_client_next(struct query_client *c, int timeout_ms, json_t **replyp, bool *continuesp);

/* Name of the last error of the server, e.g. "org.clrsym.Symbols.NotAttached"; "" if none. */
const char *query_client_error(const struct query_client *c);
/* A line for people about it, with the reason if there is one (static per client, escaped). */
const char *query_client_error_text(struct query_client *c);
/* For poll(). */
int query_client_fd(const struct query_client *c);

DEFINE_CLEANUP(struct query_client *, query_client_free)
