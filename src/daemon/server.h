/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * server: the query socket. Connections, their limits, and whose turn it is.
 *
 * Requests are answered in order, one at a time on a connection and one after the other
 * among connections, as deferred work of the loop: a target's stream always comes first. What takes
 * longer than a slice, or has to wait, is an *operation*, which is stepped again and again.
 */

#include "daemon/registry.h"
#include "perfdata/clock.h"

struct server;

struct server_options {
	const char *path; /* NULL: systemd's, or the default */
	bool keep_code;   /* the targets' code bytes are kept: exports need not read them */
};

/* Takes over the registry's hooks. Returns 0, or -errno after saying what is wrong. */
int server_new(struct server **outp, struct loop *loop, struct registry *reg,
	       const struct server_options *opts);
void server_free(struct server *srv);

DEFINE_CLEANUP(struct server *, server_free)
