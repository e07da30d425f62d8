/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may see what.
 *
 * The socket's mode lets the group connect; who does is looked at again here, so a socket whose
 * rights somebody loosened opens nothing. A process is a user's if its real, effective
 * and saved uid all are, asked of the kernel at each question: a set-uid program, or one that
 * changed its user, is not its former owner's any more. Root and the administrators' group see all.
 */
#include "daemon/conn.h"

#include <errno.h>

void access_init(struct conn *c)
{
	const struct proc_peer *peer = &c->peer;
	const struct server *srv = c->srv;

	c->admin = peer->uid == 0 ||
		   (srv->admin_group != (gid_t)-1 && proc_peer_in_group(peer, srv->admin_group));
	c->allowed = c->admin || peer->uid == geteuid() ||
		     (srv->group != (gid_t)-1 && proc_peer_in_group(peer, srv->group));
}

bool access_proc(const struct conn *c, struct proc *p)
{
	return c->allowed && (c->admin || proc_owned_by(p, c->peer.uid));
}

bool access_entry(const struct conn *c, struct entry *e)
{
	return access_proc(c, e->proc);
}

bool access_code(const struct conn *c, struct entry *e)
{
	return c->allowed && (c->peer.uid == 0 || proc_owned_by(e->proc, c->peer.uid));
}

/* The translation that was found last holds as long as that process lives. */
static bool is_translated(const struct conn *c, pid_t theirs)
{
	const struct entry *e;

	if (c->theirs != theirs || !c->ours_start)
		return false;
	e = registry_find(c->srv->reg, c->ours, c->ours_start, 0);
	return e && !e->ended && proc_alive(e->proc);
}

int access_pid(struct conn *c, pid_t theirs, pid_t *oursp)
{
	const struct entry *e;
	int r;

	if (is_translated(c, theirs)) {
		*oursp = c->ours;
		return 0;
	}
	r = proc_peer_pid(&c->peer, theirs, oursp);
	if (r || c->peer.same_pid_ns)
		return r;
	e = registry_find(c->srv->reg, *oursp, 0, 0);
	c->theirs = theirs;
	c->ours = *oursp;
	c->ours_start = e && !e->ended ? e->proc->start : 0;
	return 0;
}

void access_pid_error(struct conn *c, pid_t theirs, int r)
{
	if (r < 0)
		conn_fail(c, r);
	else
		conn_error(c, r == PROC_E_GONE ? QUERY_ERROR_NO_PROCESS : QUERY_ERROR_FOREIGN_PID,
			   json_pack("{s:i}", "pid", (int)theirs));
}

pid_t access_pid_of(const struct conn *c, const struct entry *e)
{
	pid_t pid;

	return proc_peer_pid_of(&c->peer, e->proc, &pid) == 0 ? pid : 0;
}

pid_t access_theirs(json_t *parameters)
{
	return (pid_t)json_integer_value(json_object_get(parameters, "pid"));
}

struct entry *access_find(struct conn *c, json_t *parameters)
{
	const char *bad;
	uint64_t start;
	struct entry *e;
	pid_t theirs, pid;
	int r;

	if (query_parse_process(parameters, &theirs, &start, &bad)) {
		conn_bad_parameter(c, bad);
		return NULL;
	}
	r = access_pid(c, theirs, &pid);
	if (r) {
		access_pid_error(c, theirs, r);
		return NULL;
	}
	e = registry_find(c->srv->reg, pid, start, 0);
	if (!e)
		conn_not_attached(c, theirs);
	else if (!access_entry(c, e))
		conn_error(c, QUERY_ERROR_DENIED, NULL);
	else
		entry_touch(e, c->peer.uid);
	return e && access_entry(c, e) ? e : NULL;
}
