/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server: the socket, new connections, and what the registry tells.
 *
 * Who connects is looked at before anything else, and what that costs counts as the user's: see
 * account.c. From then on the connection is on its own: see conn.c.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"

#define GROUP_NAME       "clrsym"
#define ADMIN_GROUP_NAME "clrsym-admin"
/* One round's worth of new connections: sockets come before all other work. */
#define ACCEPTS_AT_ONCE 4u
/* No fd is left: the next try. */
#define ACCEPT_PAUSE_NS MS_NS(200)
/* perf's clock against ours: drifts by some microseconds in that time. */
#define CLOCK_NS SEC_NS(30)

/* -- new connections --------------------------------------------------------------------- */

static bool has_room(const struct server *srv, const struct account *a)
{
	if (!a->uid)
		return srv->n_conns < CAP_QUERY_CLIENTS;
	return srv->n_conns < CAP_QUERY_CLIENTS - CAP_QUERY_ROOT_CLIENTS &&
	       a->conns < CAP_QUERY_USER_CLIENTS;
}

/*
 * Who a peer is takes a look into /proc, many times what the rest of a connection costs: it is the
 * user's time, and who connects faster than that lasts is turned away before. Returns 0, -errno, or
 * 1: it is not wanted.
 */
static int read_peer(struct server *srv, int fd, struct proc_peer *peer, struct account **accountp)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	uint64_t begin = clock_now_ns();
	struct account *a;
	int r;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	a = *accountp = account_get(srv, cred.uid);
	if (!a)
		return -ENOMEM;
	if (!has_room(srv, a) || (a->uid && a->budget_ns < -(int64_t)CAP_QUERY_USER_BURST_NS)) {
		srv->stats.dropped++;
		return 1;
	}
	r = proc_peer_read(fd, peer);
	a->budget_ns -= (int64_t)(clock_now_ns() - begin);
	return r;
}

/* Takes fd over. */
static int conn_new(struct server *srv, int fd)
{
	_cleanup_close_ int owned = fd;
	struct proc_peer peer;
	struct account *account = NULL;
	struct conn *c;
	int r;

	r = read_peer(srv, fd, &peer, &account);
	if (r)
		return MIN(r, 0);
	c = calloc(1, sizeof(*c));
	if (!c) {
		proc_peer_deinit(&peer);
		return -ENOMEM;
	}
	c->srv = srv;
	c->fd = TAKE_FD(owned);
	c->out_fd = -1;
	c->peer = peer;
	c->account = account;
	wire_init(&c->wire, &wire_request_limits);
	buf_init(&c->out, CAP_QUERY_OUT);
	c->next = srv->conns;
	if (c->next)
		c->next->prev = c;
	srv->conns = c;
	srv->n_conns++;
	account->conns++;
	access_init(c);
	conn_account(c);
	r = conn_watch(c);
	if (r < 0)
		conn_end(c);
	return r;
}

static void on_accept(struct loop_fd *source, uint32_t events);

static void on_accept_again(struct loop_timer *timer)
{
	struct server *srv = container_of(timer, struct server, accept_timer);

	loop_fd_add(srv->loop, &srv->listen_io, srv->socket.fd, EPOLLIN, on_accept);
}

static void on_accept(struct loop_fd *source, uint32_t events UNUSED)
{
	struct server *srv = container_of(source, struct server, listen_io);
	unsigned int i;

	for (i = 0; i < ACCEPTS_AT_ONCE; i++) {
		int fd = accept4(srv->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		uint32_t dropped;
		int r;

		if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
			return;
		r = fd < 0 ? -errno : conn_new(srv, fd);
		if (r == 0)
			continue;
		if (log_limit_pass(&srv->limit, clock_now_ns(), &dropped))
			log_warn("query socket: no connection: %s", strerror(-r));
		/* the socket stays readable: not at once again */
		loop_fd_del(&srv->listen_io);
		if (loop_timer_set(srv->loop, &srv->accept_timer, clock_now_ns() + ACCEPT_PAUSE_NS,
				   on_accept_again) < 0)
			loop_fd_add(srv->loop, &srv->listen_io, srv->socket.fd, EPOLLIN, on_accept);
		return;
	}
}

/* -- the server -------------------------------------------------------------------------- */

void server_wake(struct server *srv, const struct entry *e)
{
	struct conn *c;

	for (c = srv->conns; c; c = c->next)
		if (c->op && c->op->entry == e)
			conn_wake(c);
}

static void on_changed(void *data, struct entry *e)
{
	if (e->copy)
		copy_changed(e);
	server_wake(data, e);
}

static void on_gone(void *data, struct entry *e, const char *why)
{
	struct server *srv = data;
	struct conn *c;

	for (c = srv->conns; c; c = c->next) {
		if (c->dead || !c->op || c->op->entry != e)
			continue;
		conn_entry_gone(c, why ? why : "its answers are no longer kept");
	}
	if (e->copy)
		copy_gone(e);
}

/* perf's clock, while nobody records: so that recordings are understood afterwards. */
static void on_clock(struct loop_timer *timer)
{
	struct server *srv = container_of(timer, struct server, clock_timer);
	struct perfdata_clock_pair pair;

	if (perfdata_clock_measure(false, 0, &pair))
		return; /* the kernel does not let us, and will not later */
	perfdata_clock_track_add(&srv->clock, &pair);
	loop_timer_set(srv->loop, timer, clock_now_ns() + CLOCK_NS, on_clock);
}

static gid_t find_group(const char *name)
{
	struct group *group = getgrnam(name);

	return group ? group->gr_gid : (gid_t)-1;
}

int server_new(struct server **outp, struct loop *loop, struct registry *reg,
	       const struct server_options *opts)
{
	_cleanup_(server_freep) struct server *srv = calloc(1, sizeof(*srv));
	struct registry_hooks hooks = { .changed = on_changed, .gone = on_gone, .data = srv };
	int r;

	if (!srv)
		return -ENOMEM;
	srv->loop = loop;
	srv->reg = reg;
	srv->opts = *opts;
	srv->turns_end = &srv->turns;
	srv->started_ns = clock_now_ns();
	/* a user's own daemon is his alone */
	srv->group = geteuid() == 0 ? find_group(GROUP_NAME) : (gid_t)-1;
	srv->admin_group = find_group(ADMIN_GROUP_NAME);
	query_answers_init(&srv->answers, CAP_QUERY_OUT);
	r = listen_open(&srv->socket, opts->path, srv->group);
	if (r < 0)
		return r;
	if (geteuid() == 0 && srv->group == (gid_t)-1)
		log_info("there is no group " GROUP_NAME ": only root may ask (groupadd " GROUP_NAME
			 ", then start again)");
	r = loop_fd_add(loop, &srv->listen_io, srv->socket.fd, EPOLLIN, on_accept);
	if (r < 0)
		return r;
	registry_set_hooks(reg, &hooks);
	on_clock(&srv->clock_timer);
	*outp = TAKE_PTR(srv);
	return 0;
}

void server_free(struct server *srv)
{
	struct account *a;
	struct conn *c, *next;
	struct entry *e;

	if (!srv)
		return;
	registry_set_hooks(srv->reg, &(struct registry_hooks){ 0 });
	for (c = srv->conns; c; c = c->next)
		conn_end(c);
	for (e = registry_first(srv->reg); e; e = e->next)
		if (e->copy)
			copy_gone(e);
	for (c = srv->conns; c; c = next) {
		next = c->next;
		conn_free(c);
	}
	while ((a = srv->accounts)) {
		srv->accounts = a->next;
		free(a);
	}
	loop_work_del(&srv->work);
	loop_timer_del(&srv->accept_timer);
	loop_timer_del(&srv->throttle_timer);
	loop_timer_del(&srv->clock_timer);
	loop_fd_del(&srv->listen_io);
	query_answers_deinit(&srv->answers);
	listen_close(&srv->socket);
	free(srv);
}
