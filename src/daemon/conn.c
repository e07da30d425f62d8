/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection: input, turns, output, and its end.
 *
 * Reading only gathers bytes. A connection with a whole request, or with an operation that can go
 * on, queues for a turn; a turn is one request, or one slice of an operation, and then the next
 * connection has its own. Replies leave in the order of requests, as nothing further is taken
 * from a connection while its operation lasts or its output is not sent.
 *
 * Who is over the limit of memory is not read from; who is over that of time waits while others
 * have their turn. Who leaves a request half sent, or a reply not taken, is dropped after a while.
 * A connection that does nothing costs its struct and an fd, no timer and no wake-up.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"

#define THROTTLE_NS MS_NS(20)
/* Turns before sockets are looked at again: what a newcomer waits for others' large batches. */
#define TURNS_NS (MS_NS(1) / 2)
/* A reply is taken at this rate at least. */
#define OUT_BYTES_PER_SEC MIB(1)

static void queue_turn(struct conn *c);
static bool server_work(struct loop_work *work, uint64_t deadline_ns);

static bool over_memory(const struct conn *c)
{
	const struct account *a = c->account;

	return (a->uid && a->memory > CAP_QUERY_USER_MEMORY) || c->srv->memory > CAP_QUERY_MEMORY;
}

bool conn_account(struct conn *c)
{
	size_t now = sizeof(*c) + wire_memory(&c->wire) + c->out.size + (c->op ? c->op->memory : 0);

	c->account->memory += now - c->memory;
	c->srv->memory += now - c->memory;
	c->memory = now;
	return !over_memory(c);
}

/* -- the end of a connection ------------------------------------------------------------- */

static void op_end(struct conn *c)
{
	struct op *op = TAKE_PTR(c->op);

	loop_timer_del(&c->wake_timer);
	if (op)
		op->free(op);
}

/* Takes it out of everything; its memory goes when nobody of its own code runs any more. */
void conn_end(struct conn *c)
{
	struct server *srv = c->srv;

	if (c->dead)
		return;
	c->dead = true;
	loop_fd_del(&c->io);
	loop_timer_del(&c->stall_timer);
	copy_drop_conn(c);
	if (!c->stepping)
		op_end(c);
	/* nobody who walks all connections may still look at its account */
	c->paused = c->throttled = false;
	wire_deinit(&c->wire);
	buf_deinit(&c->out);
	conn_account(c);
	c->account->memory -= c->memory;
	srv->memory -= c->memory;
	c->account->conns--;
	srv->n_conns--;
	fd_close(c->fd);
	fd_close(c->out_fd);
	proc_peer_deinit(&c->peer);
	/* what is queued is freed at its turn, the rest at the end of the round */
	queue_turn(c);
}

void conn_free(struct conn *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		c->srv->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	free(c->copies);
	free(c);
}

static void on_stalled(struct loop_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, stall_timer);
	uint32_t dropped;

	c->srv->stats.dropped++;
	if (log_limit_pass(&c->srv->limit, clock_now_ns(), &dropped))
		log_info("query socket: a client of uid %u %s, and is dropped", c->peer.uid,
			 c->out.len ? "does not take its replies" : "left a request half sent");
	conn_end(c);
}

/* -- output ------------------------------------------------------------------------------ */

static void update_events(struct conn *c)
{
	/* what is being answered comes first: nothing is read ahead of it, but for a little */
	bool busy = c->op || c->out.len || c->queued || c->throttled;
	bool read = !c->eof && !c->paused && (!busy || c->wire.in.len < CAP_QUERY_AHEAD);
	uint32_t events = (read ? EPOLLIN : 0) | (c->out.len ? EPOLLOUT : 0);

	if (events == c->events || !c->io.loop)
		return;
	c->events = events;
	if (loop_fd_set(&c->io, events) < 0)
		conn_end(c);
}

/* Somebody who keeps us waiting does so for a bounded time. */
static void update_stall(struct conn *c)
{
	bool idle = !c->op && !c->queued && !c->throttled && !c->paused;
	uint64_t ns = CAP_QUERY_STALL_NS + c->out.len * SEC_NS(1) / OUT_BYTES_PER_SEC;

	if (!c->out.len && !(c->wire.in.len && idle))
		loop_timer_del(&c->stall_timer);
	else if (!c->stall_timer.loop &&
		 loop_timer_set(c->srv->loop, &c->stall_timer, clock_now_ns() + ns, on_stalled) < 0)
		conn_end(c);
}

static ssize_t send_some(struct conn *c)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = c->out.data, .iov_len = c->out.len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (c->out_fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &c->out_fd, sizeof(int));
	}
	return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void conn_flush(struct conn *c)
{
	while (!c->dead && c->out.len) {
		ssize_t n = send_some(c);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0) {
			conn_end(c);
			return;
		}
		fd_close(c->out_fd);
		c->out_fd = -1;
		buf_consume(&c->out, (size_t)n);
	}
	if (c->dead)
		return;
	if (!c->out.len) {
		loop_timer_del(&c->stall_timer);
		/* a large reply's memory is given back */
		if (c->out.size > CAP_QUERY_AHEAD) {
			buf_deinit(&c->out);
			buf_init(&c->out, CAP_QUERY_OUT);
		}
	}
}

/* -- replies ----------------------------------------------------------------------------- */

void conn_written(struct conn *c, int r)
{
	/* nothing else is there: what was written before has been sent */
	if (c->oneway)
		buf_clear(&c->out);
	if (r == 0)
		return;
	if (r == -ENOSPC && c->out.len == 0) {
		/* nothing of it was written: it can be told */
		buf_clear(&c->out);
		conn_error(c, QUERY_ERROR_BUSY,
			   json_pack("{s:s}", "reason", "the reply is too large"));
		return;
	}
	conn_end(c);
}

void conn_reply(struct conn *c, json_t *parameters, bool continues)
{
	int r = c->oneway ? 0 : wire_put_reply(&c->out, parameters, continues);

	json_decref(parameters);
	conn_written(c, r);
}

void conn_error(struct conn *c, const char *error, json_t *parameters)
{
	int r = c->oneway ? 0 : wire_put_error(&c->out, error, parameters);

	json_decref(parameters);
	if (r < 0)
		conn_end(c);
}

void conn_bad_parameter(struct conn *c, const char *name)
{
	conn_error(c, QUERY_ERROR_PARAMETER, json_pack("{s:s}", "parameter", name));
}

void conn_not_attached(struct conn *c, pid_t theirs)
{
	conn_error(c, QUERY_ERROR_NOT_ATTACHED, json_pack("{s:i}", "pid", (int)theirs));
}

void conn_fail(struct conn *c, int r)
{
	conn_error(c, QUERY_ERROR_FAILED, json_pack("{s:s}", "reason", strerror(-r)));
}

/* -- turns ------------------------------------------------------------------------------- */

static void queue_turn(struct conn *c)
{
	struct server *srv = c->srv;

	if (c->queued)
		return;
	c->queued = true;
	c->next_turn = NULL;
	*srv->turns_end = c;
	srv->turns_end = &c->next_turn;
	loop_work_add(srv->loop, &srv->work, server_work);
}

static struct conn *take_turn(struct server *srv)
{
	struct conn *c = srv->turns;

	srv->turns = c->next_turn;
	if (!srv->turns)
		srv->turns_end = &srv->turns;
	c->queued = false;
	return c;
}

static void on_wake(struct loop_timer *timer)
{
	queue_turn(container_of(timer, struct conn, wake_timer));
}

void conn_wake(struct conn *c)
{
	if (c->op && !c->dead)
		queue_turn(c);
}

static void too_much(struct conn *c)
{
	op_end(c);
	conn_error(c, QUERY_ERROR_BUSY,
		   json_pack("{s:s}", "reason", "too much is asked for at once"));
}

/* A small one has no part in it when there is too much. */
static bool is_large(const struct op *op)
{
	return op->memory > CAP_QUERY_AHEAD;
}

static void step(struct conn *c, uint64_t deadline_ns)
{
	struct op *op = c->op;
	enum op_result result;

	loop_timer_del(&c->wake_timer);
	/* while it lasted the process may have become another user's */
	if (op->entry && !access_entry(c, op->entry)) {
		op_end(c);
		conn_error(c, QUERY_ERROR_DENIED, NULL);
		return;
	}
	op->wake_ns = 0;
	op->wait_output = false;
	c->stepping = true;
	result = op->step(c, op, deadline_ns);
	c->stepping = false;
	if (c->dead) {
		op_end(c);
		return;
	}
	op->gone = NULL;
	if (result == OP_DONE)
		op_end(c);
	else if (!conn_account(c) && is_large(op))
		too_much(c); /* many that began small may grow at the same time */
	else if (result == OP_MORE)
		queue_turn(c);
	else if (op->wake_ns &&
		 loop_timer_set(c->srv->loop, &c->wake_timer, op->wake_ns, on_wake) < 0)
		conn_end(c);
}

void conn_start(struct conn *c, struct op *op)
{
	c->op = op;
	if (!conn_account(c))
		too_much(c);
}

/* The next request of the connection, if there is one. */
static void next_call(struct conn *c)
{
	struct wire_call call;
	json_t *msg;
	int r;

	r = wire_next(&c->wire, &msg);
	if (r == WIRE_E_MORE && !c->too_long)
		return;
	if (r == WIRE_E_MORE)
		r = WIRE_E_TOO_BIG;
	if (r == 0) {
		r = wire_parse_call(msg, &call);
		if (r == 0) {
			c->srv->stats.requests++;
			c->more = call.more;
			c->oneway = call.oneway;
			methods_call(c, &call);
		}
		json_decref(msg);
	}
	if (r && !c->dead) {
		/* what follows cannot be told apart any more */
		c->srv->stats.dropped++;
		c->oneway = false;
		conn_error(c, QUERY_ERROR_PARAMETER,
			   json_pack("{s:s}", "parameter",
				     r == WIRE_E_TOO_BIG ? "the request is too large"
							 : "the request is no varlink call"));
		if (!c->dead)
			conn_flush(c);
		conn_end(c);
	}
}

/* After anything that happened to a connection: it waits for the right thing. */
static void settle(struct conn *c)
{
	if (!c->out.len && (c->op ? c->op->wait_output : wire_ready(&c->wire)))
		queue_turn(c);
	if (c->eof && !c->op && !c->out.len && !c->queued && !c->throttled) {
		conn_end(c);
		return;
	}
	wire_trim(&c->wire);
	conn_account(c);
	update_events(c);
	if (!c->dead)
		update_stall(c);
}

/* One turn. */
static void take_its_turn(struct conn *c, uint64_t deadline_ns)
{
	if (!c->op && !c->out.len)
		next_call(c);
	if (!c->dead && c->op)
		step(c, deadline_ns);
	if (!c->dead)
		conn_flush(c);
	if (c->dead)
		return;
	settle(c);
}

static void on_throttle(struct loop_timer *timer)
{
	struct server *srv = container_of(timer, struct server, throttle_timer);
	uint64_t now = clock_now_ns();
	struct account *a;
	struct conn *c, *next;

	for (a = srv->accounts; a; a = a->next)
		account_refill(a, now);
	for (c = srv->conns; c; c = next) {
		next = c->next;
		if (c->throttled && c->account->budget_ns >= 0) {
			c->throttled = false;
			queue_turn(c);
		}
		if (c->paused && !over_memory(c)) {
			c->paused = false;
			update_events(c);
			update_stall(c);
		}
	}
	for (c = srv->conns; c; c = c->next)
		if ((c->throttled || c->paused) && !srv->throttle_timer.loop)
			loop_timer_set(srv->loop, timer, now + THROTTLE_NS, on_throttle);
}

static void arm_throttle(struct server *srv)
{
	if (!srv->throttle_timer.loop)
		loop_timer_set(srv->loop, &srv->throttle_timer, clock_now_ns() + THROTTLE_NS,
			       on_throttle);
}

static bool server_work(struct loop_work *work, uint64_t deadline_ns)
{
	struct server *srv = container_of(work, struct server, work);
	uint64_t now = clock_now_ns(), then;

	deadline_ns = MIN(deadline_ns, now + TURNS_NS);
	while (srv->turns && now < deadline_ns) {
		struct conn *c = take_turn(srv);

		if (c->dead) {
			conn_free(c);
			continue;
		}
		if (c->account->uid && c->account->budget_ns < 0) {
			c->throttled = true;
			arm_throttle(srv);
			continue;
		}
		take_its_turn(c, deadline_ns);
		then = clock_now_ns();
		c->account->budget_ns -= (int64_t)(then - now);
		now = then;
	}
	return srv->turns;
}

/* -- input ------------------------------------------------------------------------------- */

/* One round's worth. */
static void receive(struct conn *c)
{
	uint8_t *p;
	size_t n;
	ssize_t got;
	int r;

	if (over_memory(c)) {
		c->paused = true;
		arm_throttle(c->srv);
		return;
	}
	r = wire_room(&c->wire, CAP_QUERY_AHEAD, &p, &n);
	if (r < 0) {
		conn_end(c);
		return;
	}
	if (r > 0) {
		/* its turn says so, or takes the whole ones first */
		c->too_long = !wire_ready(&c->wire);
		queue_turn(c);
		return;
	}
	got = recv(c->fd, p, n, MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		c->eof = true;
		return;
	}
	wire_received(&c->wire, (size_t)got);
}

/* The client has closed: what it asked for without wanting a reply is still done. */
static void hang_up(struct conn *c)
{
	if (c->op) {
		conn_end(c);
		return;
	}
	while (!c->eof && !c->dead && !c->paused && c->wire.in.len < CAP_QUERY_AHEAD)
		receive(c);
	if (c->dead)
		return;
	c->eof = true;
	loop_fd_del(&c->io);
}

static void on_io(struct loop_fd *source, uint32_t events)
{
	struct conn *c = container_of(source, struct conn, io);

	if (events & (EPOLLERR | EPOLLHUP))
		hang_up(c);
	else if (events & EPOLLIN)
		receive(c);
	if (!c->dead && events & EPOLLOUT)
		conn_flush(c);
	if (!c->dead)
		settle(c);
}

int conn_watch(struct conn *c)
{
	c->events = EPOLLIN;
	return loop_fd_add(c->srv->loop, &c->io, c->fd, c->events, on_io);
}

void conn_entry_gone(struct conn *c, const char *why)
{
	c->op->entry = NULL;
	c->op->gone = why;
	step(c, 0);
	if (!c->dead)
		conn_flush(c);
	if (!c->dead)
		settle(c);
}
