/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * proc: everything that is asked of the kernel about another process, and the only
 * place that opens anything of a target.
 *
 * A process is a struct proc: a pidfd and a directory fd of /proc/PID, opened together and
 * checked against each other by start time, so that nothing here can mix two processes that
 * had the same pid. Whatever a target owns (its root, TMPDIR, /tmp, socket, maps) may lie, be a
 * link, or stall: it is opened below the target's root with openat2, never twice by name,
 * and no FIFO is ever opened. The functions that open return an fd, so that a privileged
 * helper can take their bodies over.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/util.h"

enum proc_error {
	PROC_E_GONE = 1,     /* no such process, or it exited meanwhile */
	PROC_E_DENIED,       /* the kernel refuses us what we need */
	PROC_E_NO_SOCKET,    /* no diagnostic socket of this process */
	PROC_E_STALE_SOCKET, /* socket files are there but nobody listens */
	PROC_E_SOCKET_GONE,  /* the process listens, but the file was deleted */
	PROC_E_LOOSE_SOCKET, /* owner or mode of the socket are not what the runtime makes */
	PROC_E_WRONG_PEER,   /* another process listens on the socket */
	PROC_E_BUSY,         /* the listener's queue is full (stopped, or swamped) */
	PROC_E_FOREIGN_FILE, /* publishing: somebody else's file, link or directory is there */
	PROC_E_OWN_MAP,      /* publishing: the runtime writes its own perf map */
	PROC_E_NO_SPACE,     /* publishing: the old file stays whole */
	PROC_E_READ_ONLY,    /* publishing: no place to write */
	PROC_E_NO_STATE,     /* no directory for locks that is ours alone */
	PROC_E_LOCKED,       /* another instance keeps this process's map */
	PROC_E_TOO_BIG,      /* a /proc file over its cap */
	PROC_E_SAME_PLACE,   /* publishing: another open map of this process is the same file */
	PROC_E_NO_FILE,      /* no such file below the target's root */
};

struct proc {
	pid_t pid;       /* as we see it */
	pid_t inner_pid; /* innermost, as it sees itself */
	pid_t parent;    /* when it was opened */
	uint64_t start;  /* field 22 of stat: ticks since boot, in our time namespace */
	int pid_fd;
	int dir_fd; /* /proc/PID */
	uid_t uid, euid, suid, fsuid;
	gid_t gid, egid;
	bool same_mount_ns, same_pid_ns;
	int64_t monotonic_offset_ns; /* target's CLOCK_MONOTONIC minus ours (time namespace) */
	int64_t boottime_offset_ns;
	char comm[64]; /* raw bytes of the target: escape before showing */
};

/* Opens a process. Returns 0, -errno or GONE, DENIED. */
int proc_open(pid_t pid, struct proc **outp);
void proc_close(struct proc *p);
/* Still the process that was opened, and not a zombie? */
bool proc_alive(const struct proc *p);
/* When it started, on our CLOCK_MONOTONIC; up to a clock tick (10 ms) too early. */
uint64_t proc_start_ns(const struct proc *p);

/*
 * Tells one program image from the next: pid and start time stay when a process calls exec, this
 * changes. For comparing within one run of ours. 0, -errno, GONE or DENIED.
 */
int proc_exec_id(const struct proc *p, uint64_t *idp);

enum proc_dotnet {
	PROC_NOT_DOTNET,
	PROC_DOTNET,        /* libcoreclr.so is mapped */
	PROC_DOTNET_STATIC, /* no libcoreclr.so but a socket: single-file or NativeAOT */
};

/* What the mappings say, and whether something listens under a diagnostic name. 0 or code. */
int proc_detect_dotnet(const struct proc *p, enum proc_dotnet *kindp);

struct proc_socket_options {
	bool allow_loose; /* accept rights or owner that the runtime would not make */
	const char *path; /* explicit, below the target's root, instead of the search; or NULL */
};

struct proc_socket_report {
	char path[256]; /* as the target sees it, of the socket that was reached or refused */
	uid_t owner;
	mode_t mode;
	uint32_t stale; /* files of that pid nobody listens on */
	pid_t peer_pid;
	uid_t peer_uid;
};

/*
 * Connects to the process's diagnostic socket: a non-blocking connected fd in *fdp. The
 * file is found by (innermost pid, start time + time-namespace offset, that or one tick more)
 * in TMPDIR (of its environ) or /tmp below its root. report (may be NULL) is filled as far as it
 * got. Returns 0, -errno or a code.
 */
int proc_connect_socket(const struct proc *p, const struct proc_socket_options *opts, int *fdp,
			struct proc_socket_report *report);

/* Opens /proc/PID/maps. 0, -errno, GONE or DENIED. */
int proc_open_maps(const struct proc *p, int *fdp);
/* A line of /proc/PID/maps. The path is as the kernel writes it, not NUL-terminated. */
struct proc_mapping {
	uint64_t start, end, offset;
	bool executable;
	const char *path; /* empty for an anonymous one */
	size_t path_len;
};

/*
 * Calls fn for each mapping; stops when it returns non-zero, which *resultp then is. 0, -errno,
 * GONE, DENIED or TOO_BIG.
 */
int proc_each_mapping(const struct proc *p, int (*fn)(void *data, const struct proc_mapping *m),
		      void *data, int *resultp);
/* Opens /proc/PID/mem for reading. */
int proc_open_mem(const struct proc *p, int *fdp);
/*
 * Opens a regular file below the target's root, read-only, following links inside it only, and
 * with the target's own rights. 0, -errno, NO_FILE, DENIED (also: not a regular file) or GONE.
 */
int proc_open_file_below_root(const struct proc *p, const char *path, int *fdp);

/* A variable of its initial environment. 0 with *valuep owned (NULL when not set), or code. */
int proc_getenv(const struct proc *p, const char *name, char **valuep);

/*
 * A setting of the runtime: DOTNET_name, else COMPlus_name, a hexadecimal number. 0 with
 * *variablep the variable's full name (static, NULL when not set), or code.
 */
int proc_get_setting(const struct proc *p, const char *name, const char **variablep,
		     uint64_t *valuep);

/* Resident set in bytes (0 when unknown). */
uint64_t proc_rss(const struct proc *p);

/*
 * Bytes left under the tightest memory limit of its cgroup and those above, UINT64_MAX when
 * there is none. cgroup v1 and v2. Machine-wide available memory counts as a limit too.
 */
uint64_t proc_memory_room(const struct proc *p);

/* Which map files a publisher keeps. */
enum proc_map_place {
	PROC_MAP_TARGET,       /* /tmp/perf-INNER.map in the target's own /tmp */
	PROC_MAP_TARGET_OUTER, /* /tmp/perf-OUTER.map there, where that number is free inside */
	PROC_MAP_HOST,         /* /tmp/perf-OUTER.map in ours */
	PROC_N_MAP_PLACES,
};

/*
 * A map file: published again and again under one name, each time complete and by one step, so
 * that readers see the old or the new one. root:root (or the user's own), mode 0644; root of the
 * target's user namespace where ours does not exist. A directory, link, FIFO or foreign file
 * under the name is refused and left alone. All maps belong to one thread.
 */
struct proc_map;

/*
 * Opens the directory; the fd is held, and works after the target's namespace is gone. 0,
 * -errno, or GONE, DENIED, READ_ONLY (no /tmp, or not writable); FOREIGN_FILE: /tmp is a link, a
 * directory that the target could not write itself, or the file is another process's (that
 * number is in use inside; an open map has that name); SAME_PLACE: an open map of this process is
 * that very file, keep that one.
 */
int proc_map_open(const struct proc *p, enum proc_map_place place, struct proc_map **outp);
/* Starts a new file, without a name where possible. 0, -errno or a code as above, or NO_SPACE. */
int proc_map_begin(struct proc_map *m);
/* Best in large pieces: nothing is buffered. 0, -errno or a code, kept for publish. */
int proc_map_append(struct proc_map *m, const void *data, size_t n);
/*
 * Puts it in place. What is there is replaced if it is the file that this map published
 * last, or, the first time, a regular file of our user with one link (an earlier run's).
 * The old file stays whole on any failure. 0, -errno, FOREIGN_FILE, NO_SPACE, READ_ONLY, DENIED.
 */
int proc_map_publish(struct proc_map *m);
/* Drops an unfinished file. */
void proc_map_abort(struct proc_map *m);
/*
 * Is the file in place the one that was published, with its content (inode, size, time)? 0,
 * FOREIGN_FILE when another has taken its place or wrote into it (the runtime's own map, say), GONE
 * when it vanished or nothing was published yet.
 */
int proc_map_check(struct proc_map *m);
/* Removes the published file if it is still ours. */
void proc_map_remove(struct proc_map *m);
/* Leaves the published file in place. */
void proc_map_close(struct proc_map *m);
const char *proc_map_path(const struct proc_map *m); /* for messages */

/* Does the runtime write its own perf map? Environment, or an open fd on perf-*.map. 0/code. */
int proc_own_perf_map(const struct proc *p, bool *yesp);

/*
 * May a thread be compiling a method right now? False when all of them sleep: then none is (but for
 * one that waits for a lock or a page in the middle of it, which is rare).
 */
bool proc_may_compile(const struct proc *p);

/*
 * Takes the lock that makes us the one keeper of this process's map and sessions:
 * /run/clrsym/PID-START.lock (a user: $XDG_RUNTIME_DIR/clrsym/, or /tmp/clrsym-UID/). Held by the
 * fd. 0, -errno, PROC_E_LOCKED with *holderp = the holder's pid (0: it has only just taken
 * it), or PROC_E_DENIED when that directory cannot be made or is not ours alone.
 */
int proc_lock(const struct proc *p, int *fdp, pid_t *holderp);
void proc_unlock(const struct proc *p, int fd);

/*
 * Removes map files that earlier runs of ours left in our /tmp for processes that are gone and
 * that no running instance has locked. Ours are known by the records kept beside the locks, which
 * go with them. Returns how many maps, or -errno.
 */
int proc_maps_sweep(void);

/* One line for people: cause and remedy. */
const char *proc_error_text(const struct proc *p, int error,
			    const struct proc_socket_report *report);

/* Walks all processes: calls fn(data, pid) for each; stops when it returns non-zero. */
int proc_for_each(int (*fn)(void *data, pid_t pid), void *data);

DEFINE_CLEANUP(struct proc *, proc_close)
DEFINE_CLEANUP(struct proc_map *, proc_map_close)
