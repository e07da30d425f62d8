/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The insides of the server, shared by its files only:
 *
 *   listen.c      the socket file
 *   server.c      the socket's new connections, what the registry tells
 *   account.c     what one user has of the server
 *   conn.c        one connection: input, turns, output
 *   access.c      who may see what
 *   methods.c     which method is which; those that answer at once
 *   resolve.c     Resolve
 *   stream.c      ListMethods, ListModules, Monitor
 *   attach.c      Attach, Detach
 *   handover.c    Snapshot and Export: what is answered with an fd
 *   copy.c        a process's code as others have it: snapshots and monitors
 */

#include <jansson.h>

#include "base/log.h"
#include "daemon/listen.h"
#include "daemon/server.h"
#include "proc/peer.h"
#include "query/range.h"
#include "query/symbols.h"
#include "query/wire.h"

struct conn;

/* -- Operations ------------------------------------------------------------------------- */

enum op_result {
	OP_DONE, /* the reply is in the connection's output, or the connection is to end */
	OP_MORE, /* its turn comes again */
	OP_WAIT, /* until wake_ns (0: no time), a change of its entry, or as wait_output says */
};

struct op {
	/* One slice, until about deadline_ns. */
	enum op_result (*step)(struct conn *c, struct op *op, uint64_t deadline_ns);
	void (*free)(struct op *op);
	struct entry *entry; /* whose changes wake it; NULL once it has gone */
	const char *gone;    /* then: why, during the step that follows; NULL: its time was over */
	uint64_t wake_ns;
	bool wait_output; /* what it wrote is to be sent first */
	size_t memory;    /* what it holds, for the accounts */
};

/* -- Connections ------------------------------------------------------------------------ */

/* What one user has of the server. */
struct account {
	struct account *next;
	uid_t uid;
	unsigned int conns;
	size_t memory;
	int64_t budget_ns; /* of the daemon's time; below 0: others first */
	uint64_t refilled_ns;
};

struct conn {
	struct server *srv;
	struct conn *next, *prev; /* all */
	struct conn *next_turn;   /* in the queue */
	bool queued, paused;      /* has its turn coming; not read from until there is memory */
	bool throttled;           /* queued, but its user has had its share */
	bool eof;                 /* nothing more will come */
	bool too_long;            /* the request that is coming is: nothing more is read */
	bool dead;                /* to be freed when its callback is over */
	int fd;
	struct loop_fd io;
	uint32_t events;
	struct loop_timer wake_timer, stall_timer;
	struct proc_peer peer;
	bool allowed, admin;
	struct account *account;
	size_t memory; /* as accounted */
	struct wire wire;
	struct buf out;
	int out_fd; /* goes with the first byte of out */
	struct op *op;
	bool stepping;     /* op is running: freed when it is back */
	bool more, oneway; /* of the call under way */
	/* the last number of another pid namespace that was translated */
	pid_t theirs, ours;
	uint64_t ours_start;
	struct copy **copies; /* snapshots that were handed over: kept up to date for it */
	size_t n_copies;
};

struct server {
	struct loop *loop;
	struct registry *reg;
	struct server_options opts;
	struct listen_socket socket;
	struct loop_fd listen_io;
	struct loop_timer accept_timer, throttle_timer, clock_timer;
	struct loop_work work;
	gid_t group, admin_group; /* (gid_t)-1: there is none */
	struct conn *conns;
	unsigned int n_conns;
	struct conn *turns, **turns_end;
	struct account *accounts;
	size_t memory;
	struct query_answers answers; /* spare: keeps its memory from one Resolve to the next */
	struct perfdata_clock_track clock; /* perf's default clock */
	uint64_t started_ns;
	uint32_t generations; /* of snapshots, ever */
	unsigned int exports; /* under way */
	struct log_limit limit;
	struct {
		uint64_t requests, addresses, hits, dropped;
	} stats;
};

/* The reply's parameters, taken over; NULL: {}. A reply that cannot be made ends the connection. */
void conn_reply(struct conn *c, json_t *parameters, bool continues);
/* An error of the interface, with its parameters (taken over). */
void conn_error(struct conn *c, const char *error, json_t *parameters);
void conn_bad_parameter(struct conn *c, const char *name);
/* The process (in the client's number) is not attached, or not any more. */
void conn_not_attached(struct conn *c, pid_t theirs);
/* -errno: Failed, with its text. */
void conn_fail(struct conn *c, int r);
/* Operations of this process may go on. */
void server_wake(struct server *srv, const struct entry *e);
/* The output that a reply was written into by hand; checks and sends it. */
void conn_written(struct conn *c, int r);
/* Starts an operation; its first step follows at once. Taken over. */
void conn_start(struct conn *c, struct op *op);
/* Its operation is to be stepped. */
void conn_wake(struct conn *c);
/* Memory has changed: accounts it. False: the user has too much (and has been told). */
bool conn_account(struct conn *c);
void conn_end(struct conn *c);
/* The last of it, after conn_end(). */
void conn_free(struct conn *c);
/* Begins to listen to the client. Returns 0 or -errno. */
int conn_watch(struct conn *c);
/* The entry of its operation goes: the operation is stepped once more, with the reason. */
void conn_entry_gone(struct conn *c, const char *why);

/* -- account.c -------------------------------------------------------------------------- */

/* The user's, made if there is none; NULL without memory. */
struct account *account_get(struct server *srv, uid_t uid);
/* Gives back what time has earned. */
void account_refill(struct account *a, uint64_t now);

/* -- access.c --------------------------------------------------------------------------- */

/* Fills allowed and admin from the peer. */
void access_init(struct conn *c);
/* May the client see this process? */
bool access_entry(const struct conn *c, struct entry *e);
/* May it have the code bytes? */
bool access_code(const struct conn *c, struct entry *e);
bool access_proc(const struct conn *c, struct proc *p);
/*
 * The process of the parameters, after translation of its number. Answers with an error itself and
 * returns NULL if there is none that the client may see.
 */
struct entry *access_find(struct conn *c, json_t *parameters);
/* The client's number, of parameters that access_find() took. */
pid_t access_theirs(json_t *parameters);
/* The client's number in ours. 0, -errno, or an enum proc_error. */
int access_pid(struct conn *c, pid_t theirs, pid_t *oursp);
/* Answers with the error that access_pid() means. */
void access_pid_error(struct conn *c, pid_t theirs, int r);
/* Our number in the client's; 0 when it has none. */
pid_t access_pid_of(const struct conn *c, const struct entry *e);

/* -- methods ---------------------------------------------------------------------------- */

/* Answers a call, or starts an operation that does. */
void methods_call(struct conn *c, const struct wire_call *call);
void method_resolve(struct conn *c, json_t *parameters);
void method_list_methods(struct conn *c, json_t *parameters);
void method_list_modules(struct conn *c, json_t *parameters);
void method_monitor(struct conn *c, json_t *parameters);
void method_attach(struct conn *c, json_t *parameters);
void method_detach(struct conn *c, json_t *parameters);
void method_snapshot(struct conn *c, json_t *parameters);
void method_export(struct conn *c, json_t *parameters);
json_t *method_process(const struct conn *c, struct entry *e);
/* Optional parameters: false (and answered) when one is of the wrong type or above max. */
bool method_take_uint(struct conn *c, json_t *parameters, const char *name, uint64_t max,
		      uint64_t *vp);
bool method_take_bool(struct conn *c, json_t *parameters, const char *name, bool *vp);
bool method_take_time(struct conn *c, json_t *parameters, const char *name, uint64_t *vp);
/* Refuses members that are not in the NULL-terminated list. */
bool method_check_names(struct conn *c, json_t *parameters, const char *const *names);

/* Text of a process or a file system, whatever bytes it has. */
json_t *method_text(const char *s, size_t len);
/* The part of a range that needs no text. */
struct range method_range_life(const struct codemap_info *info);
/* A body as a range with its raw name; borrows from the map until its next change. */
int method_range(struct codemap *map, const struct codemap_body *body,
		 const struct codemap_info *info, struct range_body *range);

/* -- copy.c ----------------------------------------------------------------------------- */

/* What is known of the process changed. */
void copy_changed(struct entry *e);
/* The entry goes. */
void copy_gone(struct entry *e);
/*
 * The process's snapshot, for a connection: 0 when it is ready, -EAGAIN when the entry's next
 * change will tell more, else -errno. It is kept up to date until copy_drop_conn().
 */
int copy_get(struct entry *e, struct conn *c, int *fdp, uint32_t *generationp, size_t *bytesp);
/* Changes go to the connection from now on, by stream_change(). 0 or -errno; EBUSY: too many. */
int copy_add_monitor(struct entry *e, struct conn *c);
void copy_drop_monitor(struct copy *copy, const struct conn *c);
/* Its snapshots are no longer used. */
void copy_drop_conn(struct conn *c);
/* Of a Monitor: an element of changes[], as text; NULL: some were left out. */
void stream_change(struct conn *c, const struct buf *change);
