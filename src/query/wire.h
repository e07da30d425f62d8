/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * wire: varlink's framing, both sides. Every message is a JSON object, ended by one NUL byte.
 *
 *   call   {"method":"a.b.C","parameters":{...},"more":true}     "oneway", "upgrade" likewise
 *   reply  {"parameters":{...},"continues":true}
 *   error  {"error":"a.b.C","parameters":{...}}
 *
 * https://varlink.org. What a peer sends is hostile: before a byte is parsed, its length, the
 * depth of its nesting and the number of its values are counted, as JSON can take a hundred times
 * its own size in memory.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/util.h"

enum wire_error {
	WIRE_E_MORE = 1, /* no whole message is there yet */
	WIRE_E_SYNTAX,   /* not a JSON object, or bytes that are no UTF-8 */
	WIRE_E_TOO_BIG,  /* longer than the limit, too deep, or of too many values */
};

struct wire_limits {
	size_t bytes;      /* of one message, its NUL included */
	size_t values;     /* in it: numbers, strings, names of members, ... */
	size_t containers; /* arrays and objects in it */
	unsigned int depth;
};

/* For what clients send to a server; the limits of a client are its own affair. */
extern const struct wire_limits wire_request_limits;
extern const struct wire_limits wire_reply_limits;

/* Bytes that came, not yet taken as messages. */
struct wire {
	struct buf in;
	size_t taken; /* of in: bytes of messages that have been taken */
	size_t tail;  /* of in: where the unfinished message begins; all before it is whole */
	const struct wire_limits *limits;
};

void wire_init(struct wire *wire, const struct wire_limits *limits);
void wire_deinit(struct wire *wire);
/*
 * Room for the next read: at least 1, at most max bytes at *pp. Returns 0, -ENOMEM, or TOO_BIG: the
 * message that is coming is too long (or whole ones wait that take as much as a longest one: they
 * are to be taken first). wire_received() says how many bytes were put there.
 */
int wire_room(struct wire *wire, size_t max, uint8_t **pp, size_t *np);
void wire_received(struct wire *wire, size_t n);
/*
 * Takes the next whole message: *msgp is owned, and an object. Returns 0, -ENOMEM or a code; after
 * SYNTAX and TOO_BIG the stream cannot be followed any more. (Where jansson does not tell want of
 * memory from bad syntax, the code is SYNTAX.)
 */
int wire_next(struct wire *wire, json_t **msgp);
/* Is a whole message there (perhaps a bad one)? */
bool wire_ready(const struct wire *wire);
/* Bytes that have come and are not taken. */
size_t wire_pending(const struct wire *wire);
/* Memory it holds. An empty one gives back what a large message needed. */
size_t wire_memory(const struct wire *wire);
void wire_trim(struct wire *wire);

/* A call, as received. Borrowed from the message. */
struct wire_call {
	const char *method; /* "a.b.C" */
	json_t *parameters; /* NULL: none, or null */
	bool more, oneway, upgrade;
};

/* Returns 0 or SYNTAX: no method, parameters that are no object, flags that are no booleans. */
int wire_parse_call(json_t *msg, struct wire_call *call);

/* A reply or an error, as received. Borrowed from the message. */
struct wire_reply {
	const char *error;  /* "a.b.C", or NULL */
	json_t *parameters; /* NULL: none, or null */
	bool continues;
};

/* Returns 0 or SYNTAX. */
int wire_parse_reply(json_t *msg, struct wire_reply *reply);

/*
 * Appends whole messages. parameters (may be NULL: {}) stays the caller's. Returns 0, -ENOMEM or
 * -ENOSPC (out's cap); after an error nothing of the message is there.
 */
int wire_put_call(struct buf *out, const char *method, json_t *parameters, bool more);
int wire_put_reply(struct buf *out, json_t *parameters, bool continues);
int wire_put_error(struct buf *out, const char *error, json_t *parameters);
/* The same around parameters that are JSON text already, put between the two. */
int wire_begin_reply(struct buf *out);
int wire_end_reply(struct buf *out, bool continues);
