/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * peer: who is at the other end of a unix socket, and which process it means by a number.
 *
 * A client in another pid namespace knows processes by other numbers than ours. They are
 * translated by the kernel's own tables, or refused; a number is never taken for one of ours.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "proc/proc.h"

struct proc_peer {
	pid_t pid; /* as we see it; 0: it cannot be seen from here */
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary */
	size_t n_groups;
	bool same_pid_ns;
	bool ns_known; /* its pid namespace could be told for sure */
	dev_t ns_dev;
	ino_t ns_ino;
};

/* Of a connected socket, as it was at connect(). Returns 0 or -errno. */
int proc_peer_read(int fd, struct proc_peer *peer);
void proc_peer_deinit(struct proc_peer *peer);
/* By its primary or a supplementary group. */
bool proc_peer_in_group(const struct proc_peer *peer, gid_t gid);
/*
 * The process that the peer calls theirs, as we call it. Looks through all of /proc for a peer
 * in another namespace. Returns 0, -errno, GONE (there is none), or DENIED (it cannot be told).
 */
int proc_peer_pid(const struct proc_peer *peer, pid_t theirs, pid_t *oursp);
/* The number that the peer has for a process. 0, -errno or a code: not visible to it, or gone. */
int proc_peer_pid_of(const struct proc_peer *peer, const struct proc *p, pid_t *theirsp);

/* Brings the ids of p up to date: a process may change them. One that is gone keeps its last. */
void proc_refresh_ids(struct proc *p);
/*
 * Is the process wholly a user's, by its real, effective and saved uid at this moment? What is
 * gone is judged by what it was, as far as that was seen. Refreshes the ids of p.
 */
bool proc_owned_by(struct proc *p, uid_t uid);
