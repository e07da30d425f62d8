/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * call: one diagnostic command, one connection, one reply, one deadline.
 *
 * The request leaves in one write. The result always comes through the loop, never from
 * inside call_start(). After a good reply the connection may be taken over (a session's
 * stream follows its reply on the same socket).
 */

#include <stdint.h>

#include "base/buf.h"
#include "base/loop.h"
#include "diagipc/diagipc.h"
#include "proc/proc.h"

enum call_error {
	CALL_E_CONNECT = 1, /* see proc_error */
	CALL_E_TIMEOUT,     /* no (whole) reply by the deadline */
	CALL_E_CLOSED,      /* the runtime closed without a reply */
	CALL_E_MALFORMED,   /* what came is no reply */
	CALL_E_REFUSED,     /* a well-formed error: see reply.hresult */
};

struct call {
	struct loop *loop;
	const struct proc *proc;
	const struct proc_socket_options *socket_opts;
	int fd;
	struct loop_fd io;
	struct loop_timer timer; /* the deadline, or the next try to connect */
	uint64_t deadline_ns;
	struct buf request, received;
	/* results */
	struct diagipc_reply reply; /* borrows from received */
	int proc_error;
	struct proc_socket_report report;
	/* 0, -errno or enum call_error. The call may be started again or freed from here. */
	void (*done)(struct call *call, int result);
};

void call_init(struct call *call, struct loop *loop, const struct proc *proc,
	       const struct proc_socket_options *socket_opts,
	       void (*done)(struct call *call, int result));
void call_deinit(struct call *call);
/* Returns 0 or -errno of building the request. */
int call_start(struct call *call, enum diagipc_command command, const union diagipc_args *args,
	       uint64_t timeout_ns);
/* Gives up without a word. */
void call_cancel(struct call *call);
/* After a good reply: the connection; what was read beyond the reply starts at reply.size. */
int call_take_fd(struct call *call);
/* One line: what went wrong and what to do. Static buffer. */
const char *call_error_text(const struct call *call, int result);
