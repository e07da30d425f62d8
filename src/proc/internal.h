/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the files of proc share, and nobody else includes (but the module's own tests).
 */

#include <dirent.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "proc/parse.h"
#include "proc/proc.h"

/* -- Errors ---------------------------------------------------------------------------- */

/* An errno that /proc gave: GONE, DENIED, or -err. */
int proc_error_of(int err);
/* An errno that a target's own file system gave: our own failures are negative, the rest code. */
int proc_error_below(int err, int code);

static inline void dir_closep(DIR **dp)
{
	if (*dp)
		closedir(*dp);
}

/* -- Opening (files.c) ----------------------------------------------------------------- */

/* openat2(2), repeated while a target's renames disturb it. An fd, or -1 with errno. */
int proc_openat2(int dir_fd, const char *path, uint64_t flags, uint64_t resolve);
/* Reads a whole file below /proc/PID (or any directory) into out. 0, -errno or a code. */
int proc_read_at(int dir_fd, const char *name, size_t cap, struct buf *out);
/* The target's root as an O_PATH fd: start of every walk below it. */
int proc_open_root(const struct proc *p, int *fdp);
/* Text of the buffer. */
struct text proc_text(const struct buf *b);

/* -- Identity -------------------------------------------------------------------------- */

/* Reads status anew: credentials change. 0, -errno or a code. */
int proc_status(const struct proc *p, struct parse_status *out);
/* The ids outside that are 0 in the target's user namespace. 0, -errno or a code. */
int proc_root_ids(const struct proc *p, uid_t *uidp, gid_t *gidp);
/* Device and inode of a namespace link; false if it may not be seen. */
bool proc_ns_id(int dir_fd, const char *name, dev_t *devp, ino_t *inop);

/* -- Borrowed rights (rights.c) -------------------------------------------------------- */

/*
 * The file-system rights of this thread while they are those of a target.
 * n_groups < 0: nothing was changed.
 */
struct rights {
	int n_groups;
	gid_t *groups;
	uid_t fsuid;
	gid_t fsgid;
};
#define RIGHTS_OWN \
	{ \
		.n_groups = -1 \
	}

/* Takes the target's. 0, -errno or PROC_E_DENIED; RIGHTS_OWN before, rights_return() after. */
int rights_borrow(struct rights *r, const struct proc *p);
/* Takes those of a bare uid and gid, without groups. */
int rights_borrow_ids(struct rights *r, uid_t uid, gid_t gid);
void rights_return(struct rights *r);
#define _cleanup_rights_ _cleanup_(rights_return)

/* -- Publishing (publish.c) ------------------------------------------------------------ */

bool proc_same_file(const struct stat *a, const struct stat *b);

/* -- State of ours (lock.c) ------------------------------------------------------------ */

/* Opens (and makes) the directory of locks and records. 0, -errno or PROC_E_DENIED. */
int proc_state_open(int *fdp);
/* Notes which file of our /tmp was published for a process, for the sweep. Best effort. */
void proc_record_write(pid_t pid, uint64_t start, const char *map, const struct stat *st);
void proc_record_remove(pid_t pid, uint64_t start, const char *map);

/* -- Memory (memory.c) ----------------------------------------------------------------- */

/*
 * Room below the limits of a v2 and a v1 memory cgroup, given as directory fds of their
 * mounts (or -1) and paths below them, and below meminfo's MemAvailable.
 */
uint64_t proc_memory_room_at(int v2_fd, const char *v2_path, int v1_fd, const char *v1_path,
			     struct text meminfo);
/*
 * Finds in mountinfo where a cgroup path is to be seen: the mount point into mount, the rest of
 * the path (relative) into rest. v1 asks for the memory tree of v1. False if nowhere.
 */
bool proc_cgroup_place(struct text mountinfo, bool v1, struct text path, char *mount,
		       size_t mount_size, char *rest, size_t rest_size);

/* -- Sockets (socket.c) ---------------------------------------------------------------- */

/* Is a socket of the right name there, and does someone listen on that name? 0, -errno, code. */
int proc_socket_listens(const struct proc *p, bool *yesp);
/* Directory of the socket as the target names it: TMPDIR or "/tmp". 0, -errno or a code. */
int proc_socket_dir(const struct proc *p, char **dirp);
