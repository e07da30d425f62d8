/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of libclrsym: one connection to the daemon, which several threads share.
 *
 * Concept: a call takes the lock, asks, and lets go. A connection on which something went wrong is
 * closed at once, as the rest of a late or damaged reply would be taken for the next one's; the
 * next call connects anew. The daemon may be restarted at any time: a call that meets the death
 * of a connection made earlier is made a second time on a new one. That is safe: no call does more
 * when it comes twice.
 *
 * Each connection has a number, the epoch. What a daemon has handed out is kept up to date as long
 * as the connection lives over which it came, so processes compare epochs to see whether
 * theirs has to be asked for again.
 *
 * All errors come together here: the codes of the client and the error names of the interface
 * become the errnos of the public header.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/buf.h"
#include "base/escape.h"
#include "base/utf.h"
#include "lib/lib.h"
#include "query/symbols.h"

#define DEFAULT_TIMEOUT_MS 5000u

int lib_check_opts(const void *opts, size_t least, size_t known)
{
	const uint8_t *bytes = opts;
	size_t sz, i;

	if (!opts)
		return 0;
	memcpy(&sz, opts, sizeof(sz));
	if (sz < least)
		return -EINVAL;
	for (i = known; i < sz; i++)
		if (bytes[i])
			return -E2BIG;
	return 0;
}

bool lib_is_forked(const struct clrsym *c)
{
	return getpid() != c->owner;
}

/* -- Errors ----------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int error;
} remote_errors[] = {
	{ QUERY_ERROR_NO_PROCESS, -ESRCH },    { QUERY_ERROR_NOT_ATTACHED, -ENOTCONN },
	{ QUERY_ERROR_NOT_YOURS, -EPERM },     { QUERY_ERROR_CANNOT_ATTACH, -ENOTSUP },
	{ QUERY_ERROR_FOREIGN_PID, -EXDEV },   { QUERY_ERROR_BUSY, -EBUSY },
	{ QUERY_ERROR_FAILED, -EREMOTEIO },    { QUERY_ERROR_DENIED, -EACCES },
	{ QUERY_ERROR_PARAMETER, -EINVAL },    { QUERY_ERROR_NO_METHOD, -ENOSYS },
	{ QUERY_ERROR_NO_INTERFACE, -ENOSYS },
};

static int remote_error(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(remote_errors); i++)
		if (strcmp(name, remote_errors[i].name) == 0)
			return remote_errors[i].error;
	return -EREMOTEIO;
}

/* "org.clrsym.Symbols.Busy: too many requests"; not by the client's own text, which is not for
 * threads. */
static void note_detail(struct clrsym *c, const char *name, json_t *parameters)
{
	const char *reason = json_string_value(json_object_get(parameters, "reason"));
	_cleanup_buf_ struct buf text;

	buf_init(&text, 4 * sizeof(c->detail));
	escape_line(&text, name, strlen(name), sizeof(c->detail));
	if (reason) {
		buf_puts(&text, ": ");
		escape_line(&text, reason, strlen(reason), sizeof(c->detail));
	}
	if (buf_cstr(&text))
		memcpy(c->detail, text.data,
		       utf8_cut((char *)text.data, text.len, sizeof(c->detail) - 1));
}

int lib_result(struct clrsym *c, const struct query_client *client, int r, json_t *reply)
{
	memset(c->detail, 0, sizeof(c->detail));
	switch (r) {
	case QUERY_E_REMOTE:
		note_detail(c, query_client_error(client), reply);
		return remote_error(query_client_error(client));
	case -EPIPE: return -ECONNRESET;
	/* a socket that is not there is a daemon that is not there */
	case -ENOENT:
	case -ENOTDIR: return -ECONNREFUSED;
	default: return r;
	}
}

/* -- Connection ------------------------------------------------------------------------- */

static void disconnect(struct clrsym *c)
{
	if (c->client)
		query_client_free(c->client);
	c->client = NULL;
}

int lib_distrust(struct clrsym *c)
{
	disconnect(c);
	return -EPROTO;
}

int lib_connect_new(const struct clrsym *c, uint64_t wait_ms, struct query_client **clientp)
{
	uint64_t timeout_ms = c->timeout_ms + wait_ms;

	return query_client_open(clientp, c->path, (uint32_t)MIN(timeout_ms, INT32_MAX));
}

/* A daemon that has gone closes its side; nothing else comes without having been asked for. */
static bool is_hung_up(struct query_client *client)
{
	struct pollfd pfd = { .fd = query_client_fd(client), .events = POLLIN | POLLRDHUP };

	return poll(&pfd, 1, 0) != 0;
}

int lib_connect(struct clrsym *c)
{
	int r;

	if (c->client && is_hung_up(c->client))
		disconnect(c);
	if (c->client)
		return 0;
	r = lib_connect_new(c, 0, &c->client);
	if (r < 0) {
		c->client = NULL;
		return lib_result(c, NULL, r, NULL);
	}
	c->epoch++;
	return 0;
}

/* Takes nothing of what came with an error: its parameters are in the client's text of it. */
static int call_once(struct clrsym *c, const char *method, json_t *parameters, json_t **replyp,
		     int *fdp)
{
	int r, result;

	*replyp = NULL;
	if (fdp)
		*fdp = -1;
	r = query_client_call(c->client, method, json_incref(parameters), replyp, fdp);
	result = lib_result(c, c->client, r, *replyp);
	if (r < 0)
		disconnect(c);
	if (r != 0) {
		json_decref(*replyp);
		*replyp = NULL;
		if (fdp)
			*fdp = fd_close(*fdp);
	}
	return result;
}

int lib_call(struct clrsym *c, const char *method, json_t *parameters, json_t **replyp, int *fdp)
{
	_cleanup_json_ json_t *owned = parameters;
	bool is_new;
	int r;

	if (!owned)
		return -ENOMEM;
	do {
		is_new = !c->client;
		if (is_new) {
			r = lib_connect(c);
			if (r < 0)
				return r;
		}
		r = call_once(c, method, owned, replyp, fdp);
	} while (r == -ECONNRESET && !is_new);
	return r;
}

/* -- Public ----------------------------------------------------------------------------- */

int clrsym_open(const struct clrsym_open_opts *opts, struct clrsym **handlep)
{
	const char *path = opts && opts->sz >= sizeof(*opts) ? opts->socket_path : NULL;
	struct clrsym *c;
	int r;

	r = lib_check_opts(opts, sizeof(*opts), sizeof(*opts));
	if (r < 0)
		return r;
	if (!handlep)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	pthread_mutex_init(&c->lock, NULL);
	c->owner = getpid();
	c->timeout_ms = opts && opts->timeout_ms ? opts->timeout_ms : DEFAULT_TIMEOUT_MS;
	c->path = strdup(path ? path : QUERY_DEFAULT_SOCKET);
	r = c->path ? lib_connect(c) : -ENOMEM;
	if (r < 0) {
		clrsym_close(c);
		return r;
	}
	*handlep = c;
	return 0;
}

void clrsym_close(struct clrsym *c)
{
	if (!c)
		return;
	disconnect(c);
	/* nobody may use it any more, so its state does not matter, as it must not in a forked
	 * child */
	if (!lib_is_forked(c))
		pthread_mutex_destroy(&c->lock);
	free(c->path);
	free(c);
}

size_t clrsym_error_detail(struct clrsym *c, char *buf, size_t size)
{
	size_t len = 0;

	if (c && !lib_is_forked(c)) {
		pthread_mutex_lock(&c->lock);
		len = strlen(c->detail);
		len = size ? MIN(len, size - 1) : 0;
		memcpy(buf, c->detail, len);
		pthread_mutex_unlock(&c->lock);
	}
	if (size)
		buf[len] = '\0';
	return len;
}
