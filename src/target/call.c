/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One command to a runtime. A runtime serves commands one by one on one thread, and a client that
 * sends half a request freezes it for everybody: hence the single write, and hence the close on
 * anything that is not a whole, good reply.
 *
 * A full accept queue (the target is stopped, or swamped) is tried again until the deadline.
 */
#include "target/call.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/caps.h"
#include "base/clock.h"

#define CALL_RETRY_NS MS_NS(50)

void call_init(struct call *call, struct loop *loop, const struct proc *proc,
	       const struct proc_socket_options *socket_opts,
	       void (*done)(struct call *call, int result))
{
	*call = (struct call){
		.loop = loop,
		.proc = proc,
		.socket_opts = socket_opts,
		.fd = -1,
		.done = done,
	};
	buf_init(&call->request, CAP_IPC_MESSAGE);
	buf_init(&call->received, CAP_IPC_MESSAGE + READ_CHUNK);
}

void call_cancel(struct call *call)
{
	loop_fd_del(&call->io);
	loop_timer_del(&call->timer);
	call->fd = fd_close(call->fd);
}

void call_deinit(struct call *call)
{
	call_cancel(call);
	buf_deinit(&call->request);
	buf_deinit(&call->received);
}

/* The end of the call. On anything but success the connection goes first. */
static void call_finish(struct call *call, int result)
{
	if (result)
		call_cancel(call);
	loop_fd_del(&call->io);
	loop_timer_del(&call->timer);
	call->done(call, result);
}

static void call_deadline(struct loop_timer *timer)
{
	call_finish(container_of(timer, struct call, timer), CALL_E_TIMEOUT);
}

static void call_ready(struct loop_fd *source, uint32_t events UNUSED)
{
	struct call *call = container_of(source, struct call, io);
	ssize_t n;
	int r;

	r = buf_reserve(&call->received, KIB(4));
	if (r < 0) {
		call_finish(call, r == -ENOMEM ? r : CALL_E_MALFORMED);
		return;
	}
	n = read(call->fd, call->received.data + call->received.len,
		 call->received.size - call->received.len);
	if (n < 0) {
		if (errno == EAGAIN || errno == EINTR)
			return;
		call_finish(call, CALL_E_CLOSED); /* reset: it may have died */
		return;
	}
	if (n == 0) {
		call_finish(call, CALL_E_CLOSED);
		return;
	}
	call->received.len += (size_t)n;
	r = diagipc_reply_parse(call->received.data, call->received.len, &call->reply);
	switch (r) {
	case 0: call_finish(call, 0); break;
	case DIAGIPC_E_MORE: break;
	case DIAGIPC_E_REFUSED: call_finish(call, CALL_E_REFUSED); break;
	default: call_finish(call, CALL_E_MALFORMED); break;
	}
}

/* Connects and sends. Returns 0 when the reply is to be waited for, or the call's result. */
static int call_connect(struct call *call)
{
	ssize_t n;
	int r;

	r = proc_connect_socket(call->proc, call->socket_opts, &call->fd, &call->report);
	if (r < 0)
		return r;
	if (r) {
		call->proc_error = r;
		return CALL_E_CONNECT;
	}
	n = send(call->fd, call->request.data, call->request.len, MSG_NOSIGNAL);
	if (n < 0)
		return CALL_E_CLOSED;
	if ((size_t)n != call->request.len)
		return CALL_E_CLOSED; /* never half a request: closing makes it whole again */
	return loop_fd_add(call->loop, &call->io, call->fd, EPOLLIN, call_ready);
}

static void call_try(struct loop_timer *timer)
{
	struct call *call = container_of(timer, struct call, timer);
	uint64_t now = clock_now_ns();
	int r;

	r = call_connect(call);
	if (r == CALL_E_CONNECT && call->proc_error == PROC_E_BUSY && now < call->deadline_ns)
		r = loop_timer_set(call->loop, &call->timer, now + CALL_RETRY_NS, call_try);
	else if (!r)
		r = loop_timer_set(call->loop, &call->timer, call->deadline_ns, call_deadline);
	if (r)
		call_finish(call, r);
}

int call_start(struct call *call, enum diagipc_command command, const union diagipc_args *args,
	       uint64_t timeout_ns)
{
	uint64_t now = clock_now_ns();
	int r;

	call_cancel(call);
	buf_clear(&call->request);
	buf_clear(&call->received);
	call->proc_error = 0;
	memset(&call->report, 0, sizeof(call->report));
	r = diagipc_request(&call->request, command, args);
	if (r < 0)
		return r;
	call->deadline_ns = now + timeout_ns;
	return loop_timer_set(call->loop, &call->timer, now, call_try);
}

int call_take_fd(struct call *call)
{
	return TAKE_FD(call->fd);
}

const char *call_error_text(const struct call *call, int result)
{
	static char text[512];

	switch (result) {
	case CALL_E_CONNECT: return proc_error_text(call->proc, call->proc_error, &call->report);
	case CALL_E_TIMEOUT:
		return "the runtime does not answer (stopped, suspended in a debugger, or busy "
		       "with "
		       "another diagnostic client)";
	case CALL_E_CLOSED: return "the runtime closed the connection without an answer";
	case CALL_E_MALFORMED: return "the answer is not of the diagnostic protocol";
	case CALL_E_REFUSED:
		snprintf(text, sizeof(text), "the runtime refused: %s",
			 diagipc_hresult_text(call->reply.hresult));
		return text;
	default: return result < 0 ? strerror(-result) : "done";
	}
}
