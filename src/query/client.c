/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asking side: one request, one reply, in order, over a blocking socket.
 *
 * The server is trusted with answers, not with our memory, time or file descriptors: replies have
 * limits like requests, every wait has a deadline, of fds at most one a reply is kept and the
 * others are closed as they come. Once anything went wrong nobody can tell which reply belongs to
 * which request, so the first failure is the connection's last word.
 *
 * A reply is nearly always one read. The first read of a call therefore blocks in the kernel
 * (SO_RCVTIMEO), and saves a system call of a round trip; only when more is to come poll()
 * measures what is left of the time.
 */
#include "query/client.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"
#include "query/wire.h"

/* Room for so many fds of one read; the kernel closes those for which there is none. */
#define CLIENT_FDS  4
#define CLIENT_READ KIB(64)
/* A request's buffer of this size is kept. */
#define CLIENT_KEEP KIB(64)

struct query_client {
	int fd;
	int got_fd; /* came with the reply that is being read */
	int failed; /* the first -errno */
	bool streaming;
	uint64_t timeout_ns;
	struct wire wire;
	struct buf out;
	char error[256], reason[512]; /* as sent */
	char text[1024];
};

int query_client_open(struct query_client **outp, const char *path, uint32_t timeout_ms)
{
	_cleanup_(query_client_freep) struct query_client *c = NULL;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval tv;
	size_t len = strlen(path);

	if (len >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	memcpy(addr.sun_path, path, len);
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->got_fd = -1;
	timeout_ms = MAX(timeout_ms, 1u);
	c->timeout_ns = MS_NS(timeout_ms);
	wire_init(&c->wire, &wire_reply_limits);
	buf_init(&c->out, CAP_QUERY_REQUEST);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		return -errno;
	tv = (struct timeval){ timeout_ms / 1000, timeout_ms % 1000 * 1000 };
	/* the first holds for connect(), too: with a full backlog it waits */
	if (setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0 ||
	    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) < 0)
		return -errno;
	while (connect(c->fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		if (errno != EINTR)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
	*outp = TAKE_PTR(c);
	return 0;
}

void query_client_free(struct query_client *c)
{
	if (!c)
		return;
	fd_close(c->fd);
	fd_close(c->got_fd);
	wire_deinit(&c->wire);
	buf_deinit(&c->out);
	free(c);
}

static int client_fail(struct query_client *c, int r)
{
	if (!c->failed)
		c->failed = r;
	return c->failed;
}

/* Waits for the socket until the deadline (UINT64_MAX: for ever). Returns 0 or -errno. */
static int client_wait(struct query_client *c, short events, uint64_t deadline)
{
	struct pollfd pfd = { .fd = c->fd, .events = events };

	for (;;) {
		uint64_t now = clock_now_ns(), left;
		int r;

		left = deadline > now ? (deadline - now + MS_NS(1) - 1) / MS_NS(1) : 0;
		left = MIN(left, (uint64_t)INT_MAX);
		r = poll(&pfd, 1, deadline == UINT64_MAX ? -1 : (int)left);
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (!r && clock_now_ns() >= deadline)
			return -ETIMEDOUT;
	}
}

/* What a broken connection says, in one word. */
static int client_errno(void)
{
	return errno == EPIPE ? -ECONNRESET : -errno;
}

/* -- Writing -------------------------------------------------------------------------- */

static int client_send(struct query_client *c, uint64_t deadline)
{
	size_t done = 0;

	while (done < c->out.len) {
		ssize_t n = send(c->fd, c->out.data + done, c->out.len - done,
				 MSG_NOSIGNAL | MSG_DONTWAIT);
		int r;

		if (n >= 0) {
			done += (size_t)n;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return client_errno();
		r = client_wait(c, POLLOUT, deadline);
		if (r < 0)
			return r;
	}
	return 0;
}

static int client_request(struct query_client *c, const char *method, json_t *parameters, bool more,
			  uint64_t deadline)
{
	int r;

	c->error[0] = c->reason[0] = '\0';
	if (c->failed)
		return c->failed;
	if (c->streaming)
		return client_fail(c, -EBUSY);
	/* bytes that nobody asked for would be taken for the answer */
	if (wire_pending(&c->wire))
		return client_fail(c, -EPROTO);
	buf_clear(&c->out);
	r = wire_put_call(&c->out, method, parameters, more);
	if (r < 0)
		return client_fail(c, r == -ENOSPC ? -EMSGSIZE : r);
	r = client_send(c, deadline);
	if (r < 0)
		return client_fail(c, r);
	if (c->out.size > CLIENT_KEEP)
		buf_deinit(&c->out);
	return 0;
}

/* -- Reading -------------------------------------------------------------------------- */

/* Keeps the first fd of a reply, closes the others. */
static void client_take_fds(struct query_client *c, struct msghdr *msg)
{
	struct cmsghdr *cmsg;

	for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t i, n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(fd), sizeof(fd));
			if (c->got_fd < 0)
				c->got_fd = fd;
			else
				fd_close(fd);
		}
	}
}

/* One read. Returns 0 (perhaps with nothing: -EAGAIN) or -errno. */
static int client_read(struct query_client *c, int flags)
{
	union {
		struct cmsghdr align;
		uint8_t space[CMSG_SPACE(CLIENT_FDS * sizeof(int))];
	} control;
	struct iovec iov;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	uint8_t *p;
	ssize_t n;
	int r;

	r = wire_room(&c->wire, CLIENT_READ, &p, &iov.iov_len);
	if (r)
		return r < 0 ? r : -EPROTO;
	iov.iov_base = p;
	n = recvmsg(c->fd, &msg, flags | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EINTR ? -EAGAIN : client_errno();
	client_take_fds(c, &msg);
	if (!n)
		return -ECONNRESET;
	wire_received(&c->wire, (size_t)n);
	return 0;
}

/* The next whole message. block: the first read may wait in the kernel. */
static int client_message(struct query_client *c, uint64_t deadline, bool block, json_t **msgp)
{
	for (;;) {
		int r = wire_next(&c->wire, msgp);

		if (r != WIRE_E_MORE)
			return r > 0 ? -EPROTO : r;
		if (!block) {
			r = client_wait(c, POLLIN, deadline);
			if (r < 0)
				return r;
		}
		r = client_read(c, block ? 0 : MSG_DONTWAIT);
		if (r < 0 && r != -EAGAIN)
			return r;
		block = false;
	}
}

static void client_keep_error(struct query_client *c, const struct wire_reply *reply)
{
	static const char *const reasons[] = { "reason", "parameter", "method", "interface" };
	const char *reason = NULL;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(reasons) && !reason; i++)
		reason = json_string_value(json_object_get(reply->parameters, reasons[i]));
	snprintf(c->error, sizeof(c->error), "%s", reply->error);
	snprintf(c->reason, sizeof(c->reason), "%s", reason ? reason : "");
}

/* Reads one reply, whose continuation is as streaming allows. Returns as query_client_call(). */
static int client_reply(struct query_client *c, uint64_t deadline, bool block, json_t **replyp)
{
	_cleanup_(json_decrefp) json_t *msg = NULL;
	struct wire_reply reply;
	int r;

	r = client_message(c, deadline, block, &msg);
	if (r < 0)
		return r;
	if (wire_parse_reply(msg, &reply) || (reply.continues && !c->streaming))
		return -EPROTO;
	*replyp = reply.parameters ? json_incref(reply.parameters) : json_object();
	if (!*replyp)
		return -ENOMEM;
	c->streaming = reply.continues;
	if (!reply.error)
		return 0;
	client_keep_error(c, &reply);
	return QUERY_E_REMOTE;
}

int query_client_call(struct query_client *c, const char *method, json_t *parameters,
		      json_t **replyp, int *fdp)
{
	uint64_t deadline = clock_now_ns() + c->timeout_ns;
	int r;

	*replyp = NULL;
	if (fdp)
		*fdp = -1;
	r = client_request(c, method, parameters, false, deadline);
	json_decref(parameters);
	if (r < 0)
		return r;
	r = client_reply(c, deadline, true, replyp);
	if (r >= 0 && fdp)
		*fdp = TAKE_FD(c->got_fd);
	c->got_fd = fd_close(c->got_fd);
	wire_trim(&c->wire);
	return r < 0 ? client_fail(c, r) : r;
}

int query_client_call_more(struct query_client *c, const char *method, json_t *parameters)
{
	int r = client_request(c, method, parameters, true, clock_now_ns() + c->timeout_ns);

	json_decref(parameters);
	c->streaming = !r;
	return r;
}

int query_client_next(struct query_client *c, int timeout_ms, json_t **replyp, bool *continuesp)
{
	uint64_t deadline = UINT64_MAX;
	int r;

	*replyp = NULL;
	*continuesp = false;
	if (c->failed)
		return c->failed;
	if (!c->streaming)
		return -EINVAL;
	if (timeout_ms >= 0)
		deadline = clock_now_ns() + MS_NS((uint64_t)timeout_ms);
	r = client_reply(c, deadline, false, replyp);
	c->got_fd = fd_close(c->got_fd);
	wire_trim(&c->wire);
	if (r < 0 && r != -ETIMEDOUT)
		return client_fail(c, r);
	*continuesp = c->streaming;
	return r < 0 ? -EAGAIN : r;
}

/* -- Errors --------------------------------------------------------------------------- */

const char *query_client_error(const struct query_client *c)
{
	return c->error;
}

const char *query_client_error_text(struct query_client *c)
{
	char raw[sizeof(c->error) + sizeof(c->reason) + 2];
	int n = snprintf(raw, sizeof(raw), "%s%s%s", c->error, *c->reason ? ": " : "", c->reason);

	snprintf(c->text, sizeof(c->text), "%s", escape_terminal(raw, (size_t)n));
	return c->text;
}

int query_client_fd(const struct query_client *c)
{
	return c->fd;
}
