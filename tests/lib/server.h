/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A varlink server in a thread, whose every answer is the test's own.
 */

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "query/wire.h"

/* Check's own assertions work in tests alone, and this serves others, too. */
#define must(good) \
	do { \
		if (!(good)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #good); \
			abort(); \
		} \
	} while (0)

struct server;

/* Appends what is to be sent (nothing: no answer); *fdp, if set, goes with it and is borrowed. */
typedef void (*server_fn)(void *data, const struct wire_call *call, struct buf *out, int *fdp);

struct server *server_start(const char *path, server_fn fn, void *data);
/* As kill -9 does: connections break, the socket's file stays. */
void server_kill(struct server *s);
/* Sends to everyone who is connected. */
void server_broadcast(struct server *s, const char *text, size_t len);
