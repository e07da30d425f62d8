/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attach and Detach: who wants a process attached, and until when.
 *
 * An Attach is its user's: another one's Detach does not undo it, and what the command line said
 * stays. Without anybody who wants it, a process is left in peace.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"

/* A day: what is wanted for longer is wanted for good. */
#define HOLD_MAX_S 86400u

struct attach {
	struct op op;
	pid_t theirs;
	uint64_t until_ns;
};

static void attach_free(struct op *op)
{
	free(container_of(op, struct attach, op));
}

static void cannot(struct conn *c, pid_t theirs, const char *why)
{
	conn_error(c, QUERY_ERROR_CANNOT_ATTACH,
		   json_pack("{s:i, s:o}", "pid", (int)theirs, "reason",
			     method_text(why, strlen(why))));
}

static enum op_result attach_step(struct conn *c, struct op *op, uint64_t deadline_ns UNUSED)
{
	struct attach *attach = container_of(op, struct attach, op);
	const struct entry *e = op->entry;

	if (!e) {
		cannot(c, attach->theirs, op->gone);
		return OP_DONE;
	}
	if (!e->complete && !e->ended && clock_now_ns() < attach->until_ns) {
		op->wake_ns = attach->until_ns;
		return OP_WAIT;
	}
	conn_reply(c, json_pack("{s:o}", "process", method_process(c, op->entry)), false);
	return OP_DONE;
}

/* A user cannot fill the daemon with processes, neither living nor dead ones. */
static bool has_enough(const struct conn *c)
{
	const struct registry *reg = c->srv->reg;
	uid_t uid = c->peer.uid;

	return uid && (registry_count_holds(reg, uid, false) >= CAP_QUERY_USER_ATTACHES ||
		       registry_count_holds(reg, uid, true) >= CAP_QUERY_USER_ENTRIES);
}

/* May the client have this process attached? Answers if not. */
static bool may_attach(struct conn *c, pid_t pid, pid_t theirs)
{
	_cleanup_(proc_closep) struct proc *proc = NULL;
	int r = proc_open(pid, &proc);

	if (r < 0)
		conn_fail(c, r);
	else if (r == PROC_E_GONE)
		conn_error(c, QUERY_ERROR_NO_PROCESS, json_pack("{s:i}", "pid", (int)theirs));
	else if (r > 0)
		cannot(c, theirs, proc_error_text(NULL, r, NULL));
	else if (!access_proc(c, proc))
		conn_error(c, QUERY_ERROR_DENIED, NULL);
	else if (has_enough(c))
		conn_error(c, QUERY_ERROR_BUSY,
			   json_pack("{s:s}", "reason", "too many processes of one user"));
	else
		return true;
	return false;
}

/* Answers if it cannot. */
static struct entry *attach(struct conn *c, pid_t pid, pid_t theirs, uint64_t hold_s)
{
	struct entry *e = NULL;
	char why[512];
	int r;

	r = registry_attach(c->srv->reg, pid, &e, why, sizeof(why));
	if (r > 0) {
		cannot(c, theirs, why);
		return NULL;
	}
	if (r == 0)
		r = entry_hold(e, c->peer.uid, hold_s * SEC_NS(1));
	if (r < 0) {
		conn_fail(c, r);
		return NULL;
	}
	/* the pid may have been reused since it was looked at */
	if (access_entry(c, e))
		return e;
	entry_release(e, c->peer.uid);
	conn_error(c, QUERY_ERROR_DENIED, NULL);
	return NULL;
}

void method_attach(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "hold_s", "wait_ms", NULL };
	uint64_t hold_s = 0, wait_ms = 0, start;
	struct attach *a;
	const char *bad;
	struct entry *e;
	pid_t theirs, pid;
	int r;

	if (!method_check_names(c, parameters, names) ||
	    !method_take_uint(c, parameters, "hold_s", HOLD_MAX_S, &hold_s) ||
	    !method_take_uint(c, parameters, "wait_ms", CAP_QUERY_ATTACH_WAIT_MS, &wait_ms))
		return;
	if (query_parse_process(parameters, &theirs, &start, &bad)) {
		conn_bad_parameter(c, bad);
		return;
	}
	r = access_pid(c, theirs, &pid);
	if (r) {
		access_pid_error(c, theirs, r);
		return;
	}
	if (!may_attach(c, pid, theirs))
		return;
	e = attach(c, pid, theirs, hold_s);
	if (!e)
		return;
	a = calloc(1, sizeof(*a));
	if (!a) {
		conn_fail(c, -ENOMEM);
		return;
	}
	a->op = (struct op){
		.step = attach_step, .free = attach_free, .entry = e, .memory = sizeof(*a)
	};
	a->theirs = theirs;
	a->until_ns = clock_now_ns() + wait_ms * MS_NS(1);
	conn_start(c, &a->op);
}

void method_detach(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", NULL };
	struct entry *e;

	if (!method_check_names(c, parameters, names))
		return;
	e = access_find(c, parameters);
	if (!e)
		return;
	if (entry_release(e, c->peer.uid))
		conn_reply(c, NULL, false);
	else
		conn_error(c, QUERY_ERROR_NOT_YOURS,
			   json_pack("{s:i}", "pid", (int)access_theirs(parameters)));
}
