/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session: see session.h. States only move forward:
 *
 *   ASKING ──► OPEN ──► STOPPING ──► ENDED
 *
 * ASKING walks the commands from the newest that the version knows down to CollectTracing2, each
 * on its own connection, as long as the answer is UNKNOWN_COMMAND.
 */
#include "target/session.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"

#define SESSION_STOP_AGAIN_NS MS_NS(200)

struct chunk {
	struct chunk *next;
	uint64_t first_ns;   /* no later than the arrival of any byte of it */
	uint64_t arrival_ns; /* of its last bytes */
	size_t len, done;
	uint8_t bytes[READ_CHUNK];
};

enum session_state {
	SESSION_ASKING,
	SESSION_OPEN,
	SESSION_STOPPING,
	SESSION_ENDED,
};

struct session {
	struct pool *pool;
	const struct proc *proc;
	struct session_options opts;
	struct session_callbacks callbacks;
	void *data;
	enum session_state state;
	struct call open_call, stop_call;
	enum diagipc_command command;
	uint64_t id;
	int fd;
	struct loop_fd io;
	struct loop_timer deadline;   /* of the stop */
	struct loop_timer stop_timer; /* the stop is said again */
	struct loop_work work;
	struct feed *feed;
	struct chunk *head, *tail, *spare;
	size_t backlog;
	uint64_t bytes;
	bool eof;
	uint64_t eof_ns;
	bool paused;              /* over the backlog's cap: not reading */
	uint64_t stop_timeout_ns; /* asked to stop before it was open; 0 if not */
	enum session_end end;
	char end_text[600];
};

static bool session_decode(struct loop_work *work, uint64_t deadline_ns);

static void session_close(struct session *s)
{
	loop_fd_del(&s->io);
	s->fd = fd_close(s->fd);
}

static void session_finish(struct session *s, enum session_end end, const char *text)
{
	if (s->state == SESSION_ENDED)
		return;
	s->state = SESSION_ENDED;
	s->end = end;
	snprintf(s->end_text, sizeof(s->end_text), "%s", text);
	session_close(s);
	call_cancel(&s->open_call);
	call_cancel(&s->stop_call);
	loop_timer_del(&s->deadline);
	loop_timer_del(&s->stop_timer);
	loop_work_del(&s->work);
	s->callbacks.ended(s, end, s->data);
}

/* -- draining ------------------------------------------------------------------------- */

static struct chunk *session_chunk(struct session *s)
{
	struct chunk *c = s->tail;

	if (c && c->len < sizeof(c->bytes) / 2)
		return c;
	c = s->spare ? TAKE_PTR(s->spare) : malloc(sizeof(*c));
	if (!c)
		return NULL;
	c->next = NULL;
	c->len = c->done = 0;
	c->first_ns = c->arrival_ns = clock_now_ns();
	if (s->tail)
		s->tail->next = c;
	else
		s->head = c;
	s->tail = c;
	return c;
}

static void session_count(struct session *s, size_t n)
{
	s->backlog += n;
	s->pool->backlog += n;
	s->bytes += n;
}

static void session_drop_chunk(struct session *s)
{
	struct chunk *c = s->head;

	s->head = c->next;
	if (!s->head)
		s->tail = NULL;
	s->backlog -= c->len;
	s->pool->backlog -= c->len;
	if (s->spare)
		free(c);
	else
		s->spare = c;
}

static bool session_over_cap(const struct session *s)
{
	return s->backlog >= CAP_BACKLOG_TARGET ||
	       (s->pool->backlog >= CAP_BACKLOG_TOTAL && s->backlog);
}

static void session_eof(struct session *s)
{
	s->eof = true;
	s->eof_ns = clock_now_ns();
	session_close(s);
	loop_work_add(s->pool->loop, &s->work, session_decode);
}

static void session_ready(struct loop_fd *source, uint32_t events UNUSED)
{
	struct session *s = container_of(source, struct session, io);
	struct chunk *c;
	ssize_t n;

	if (session_over_cap(s)) {
		s->paused = true;
		loop_fd_del(&s->io);
		return;
	}
	c = session_chunk(s);
	if (!c) {
		session_finish(s, SESSION_FAILED, "out of memory");
		return;
	}
	n = read(s->fd, c->bytes + c->len, sizeof(c->bytes) - c->len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		session_eof(s);
		return;
	}
	c->arrival_ns = clock_now_ns();
	c->len += (size_t)n;
	session_count(s, (size_t)n);
	loop_work_add(s->pool->loop, &s->work, session_decode);
}

/* -- decoding ------------------------------------------------------------------------- */

static void session_drained(struct session *s)
{
	if (nettrace_ended(feed_nettrace(s->feed)))
		session_finish(s, SESSION_COMPLETE, "ended in good order");
	else
		session_finish(s, SESSION_CUT, "the stream ended early");
}

static bool session_decode(struct loop_work *work, uint64_t deadline_ns)
{
	struct session *s = container_of(work, struct session, work);
	bool live = s->opts.live;

	while (s->head) {
		struct chunk *c = s->head;
		int r;

		r = feed_bytes(s->feed, c->bytes + c->done, c->len - c->done,
			       live ? c->arrival_ns : 0);
		if (r) {
			session_finish(s, r < 0 ? SESSION_FAILED : SESSION_CORRUPT,
				       r < 0 ? strerror(-r)
					     : nettrace_error_text(feed_nettrace(s->feed), r));
			return false;
		}
		session_drop_chunk(s);
		if (s->head && clock_now_ns() >= deadline_ns)
			return true;
	}
	if (s->paused) {
		int r = loop_fd_add(s->pool->loop, &s->io, s->fd, EPOLLIN, session_ready);

		s->paused = false;
		if (r < 0) {
			session_finish(s, SESSION_FAILED, strerror(-r));
			return false;
		}
	}
	if (s->eof || nettrace_ended(feed_nettrace(s->feed))) {
		session_drained(s);
		return false;
	}
	if (s->callbacks.progress)
		s->callbacks.progress(s, s->data);
	return false;
}

/* -- opening -------------------------------------------------------------------------- */

static int session_ask(struct session *s)
{
	union diagipc_args args = { .session = s->opts.request };

	return call_start(&s->open_call, s->command, &args, DEFAULT_IPC_DEADLINE_NS);
}

static void session_answered(struct call *call, int result)
{
	struct session *s = container_of(call, struct session, open_call);
	size_t rest;
	struct chunk *c;
	int r;

	if (result == CALL_E_REFUSED && call->reply.hresult == DIAGIPC_UNKNOWN_COMMAND) {
		enum diagipc_command next = diagipc_session_fallback(s->command);

		if (next) {
			s->command = next;
			r = session_ask(s);
			if (r < 0)
				session_finish(s, SESSION_FAILED, strerror(-r));
			return;
		}
	}
	if (result) {
		session_finish(s, result < 0 ? SESSION_FAILED : SESSION_REFUSED,
			       call_error_text(call, result));
		return;
	}
	if (diagipc_parse_session_id(&call->reply, &s->id) || !s->id) {
		session_finish(s, SESSION_REFUSED, "the runtime's answer holds no session");
		return;
	}
	s->state = SESSION_OPEN;
	s->fd = call_take_fd(call);
	rest = call->received.len - call->reply.size;
	if (rest) {
		c = session_chunk(s);
		if (!c || rest > sizeof(c->bytes)) {
			session_finish(s, SESSION_FAILED, "out of memory");
			return;
		}
		memcpy(c->bytes, call->received.data + call->reply.size, rest);
		c->len = rest;
		c->arrival_ns = clock_now_ns();
		session_count(s, rest);
		loop_work_add(s->pool->loop, &s->work, session_decode);
	}
	r = loop_fd_add(s->pool->loop, &s->io, s->fd, EPOLLIN, session_ready);
	if (r < 0) {
		session_finish(s, SESSION_FAILED, strerror(-r));
		return;
	}
	if (s->stop_timeout_ns)
		session_stop(s, s->stop_timeout_ns);
	else
		s->callbacks.opened(s, s->data);
}

/* -- stopping ------------------------------------------------------------------------- */

static void session_late(struct loop_timer *timer)
{
	struct session *s = container_of(timer, struct session, deadline);

	session_finish(s, SESSION_TIMEOUT, "the session did not end in time");
}

static void session_send_stop(struct loop_timer *timer)
{
	struct session *s = container_of(timer, struct session, stop_timer);
	union diagipc_args args = { .session_id = s->id };
	uint64_t now = clock_now_ns();
	int r;

	r = call_start(&s->stop_call, DIAGIPC_STOP_TRACING, &args,
		       s->deadline.deadline_ns > now ? s->deadline.deadline_ns - now : 1);
	if (r < 0)
		session_finish(s, SESSION_FAILED, strerror(-r));
}

static void session_stop_answered(struct call *call, int result)
{
	struct session *s = container_of(call, struct session, stop_call);
	int r;

	/*
	 * The answer comes after the stream's end and says nothing new. A failure is not the
	 * end either: the stream's own end, or the deadline, decides. But a stop that was not
	 * heard is said again.
	 */
	if (result && result != CALL_E_TIMEOUT && !s->eof) {
		log_debug("pid %d: StopTracing: %s", (int)s->proc->pid,
			  call_error_text(call, result));
		r = loop_timer_set(s->pool->loop, &s->stop_timer,
				   clock_now_ns() + SESSION_STOP_AGAIN_NS, session_send_stop);
		if (r < 0)
			session_finish(s, SESSION_FAILED, strerror(-r));
	}
}

void session_stop(struct session *s, uint64_t timeout_ns)
{
	int r;

	if (s->state == SESSION_ASKING) {
		/* the request may be on its way: what it starts is stopped, too */
		s->stop_timeout_ns = timeout_ns;
		return;
	}
	if (s->state != SESSION_OPEN)
		return;
	s->state = SESSION_STOPPING;
	r = loop_timer_set(s->pool->loop, &s->deadline, clock_now_ns() + timeout_ns, session_late);
	if (r < 0)
		session_finish(s, SESSION_FAILED, strerror(-r));
	else
		session_send_stop(&s->stop_timer);
}

/* -- the session ---------------------------------------------------------------------- */

int session_new(struct session **outp, struct pool *pool, const struct proc *proc,
		const struct proc_socket_options *socket_opts, struct codemap *map,
		const struct session_options *opts, const struct session_callbacks *callbacks,
		void *data)
{
	_cleanup_(session_freep) struct session *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->pool = pool;
	s->proc = proc;
	s->opts = *opts;
	s->callbacks = *callbacks;
	s->data = data;
	s->fd = -1;
	s->command = diagipc_session_command(&opts->version);
	call_init(&s->open_call, pool->loop, proc, socket_opts, session_answered);
	call_init(&s->stop_call, pool->loop, proc, socket_opts, session_stop_answered);
	r = feed_new(&s->feed, map, &opts->feed);
	if (r < 0)
		return r;
	r = session_ask(s);
	if (r < 0)
		return r;
	*outp = TAKE_PTR(s);
	return 0;
}

void session_free(struct session *s)
{
	if (!s)
		return;
	s->state = SESSION_ENDED;
	session_close(s);
	call_deinit(&s->open_call);
	call_deinit(&s->stop_call);
	loop_timer_del(&s->deadline);
	loop_timer_del(&s->stop_timer);
	loop_work_del(&s->work);
	while (s->head)
		session_drop_chunk(s);
	free(s->spare);
	feed_free(s->feed);
	free(s);
}

bool session_is_open(const struct session *s)
{
	return s->state == SESSION_OPEN;
}

struct feed *session_feed(struct session *s)
{
	return s->feed;
}

uint64_t session_bytes(const struct session *s)
{
	return s->bytes;
}

uint64_t session_read_until(const struct session *s)
{
	if (s->head)
		return s->head->first_ns;
	return s->eof ? s->eof_ns : clock_now_ns();
}

void session_set_callbacks(struct session *s, const struct session_callbacks *callbacks)
{
	s->callbacks = *callbacks;
}

const char *session_end_text(const struct session *s)
{
	return s->end_text;
}
